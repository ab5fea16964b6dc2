"""Peak memory of an export, against its bounds.

Makes a decoder of 1.1 billion random weights in TinyLlama's shape (22 layers, hidden size 2,048, untied head; bfloat16,
sharded) in a temporary folder and exports it to int4, each time in a process of its own:

    without validation   the output's size + 1.5 GiB: weights stream tensor by tensor
    with validation      the size of the model in float32 + 2 GiB: transformers holds all of it

Run:   python benchmarks/export_memory.py
Needs: Linux (it reads /proc), `pip install 'edgepipe[export]'`, 4 GB of disk, 7 GB of memory (with --layers 4: 2 GB).
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from common import report, table

import edgepipe
from edgepipe.devices.probes import peak_rss_bytes
from edgepipe.exporters.llm.recipe import DecoderRecipe, Thresholds
from edgepipe.pipeline.recipe import Recipe

GIB = 2**30
HIDDEN, INTERMEDIATE, HEADS, KV_HEADS, VOCABULARY = 2048, 5632, 32, 4, 32000


def make_model(folder: Path, layers: int) -> int:
    """Write config, tokenizer and one shard for each part; returns the bytes of the weights in float32."""
    import torch
    from safetensors.torch import save_file

    kv_width = HIDDEN * KV_HEADS // HEADS
    square, kv, up = (HIDDEN, HIDDEN), (kv_width, HIDDEN), (INTERMEDIATE, HIDDEN)
    layer = {
        "self_attn.q_proj": square,
        "self_attn.k_proj": kv,
        "self_attn.v_proj": kv,
        "self_attn.o_proj": square,
        "mlp.gate_proj": up,
        "mlp.up_proj": up,
        "mlp.down_proj": up[::-1],
        "input_layernorm": (HIDDEN,),
        "post_attention_layernorm": (HIDDEN,),
    }
    table_shape = (VOCABULARY, HIDDEN)
    parts = [{"model.embed_tokens": table_shape}, {"model.norm": (HIDDEN,), "lm_head": table_shape}]
    parts += [{f"model.layers.{index}.{name}": shape for name, shape in layer.items()} for index in range(layers)]

    weight_map, elements = {}, 0
    generator = torch.Generator().manual_seed(0)
    for number, part in enumerate(parts, 1):
        shard = f"model-{number:05}-of-{len(parts):05}.safetensors"
        tensors = {
            f"{name}.weight": torch.ones(shape, dtype=torch.bfloat16)
            if "norm" in name
            else torch.empty(shape, dtype=torch.bfloat16).normal_(0, 0.02, generator=generator)
            for name, shape in part.items()
        }
        save_file(tensors, folder / shard, metadata={"format": "pt"})
        weight_map.update(dict.fromkeys(tensors, shard))
        elements += sum(tensor.numel() for tensor in tensors.values())
    index = {"metadata": {"total_size": 2 * elements}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "torch_dtype": "bfloat16",
        "hidden_size": HIDDEN,
        "intermediate_size": INTERMEDIATE,
        "num_hidden_layers": layers,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "bos_token_id": 0,
        "eos_token_id": 0,
    }
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    _make_tokenizer(folder)
    return 4 * elements


def _make_tokenizer(folder: Path) -> None:
    """A token for every byte."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokens = ["<end>", *alphabet]
    tokenizer = Tokenizer(models.BPE({token: number for number, token in enumerate(tokens)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<end>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<end>", "bos_token": "<end>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")


def export(source: Path, destination: Path, validate: bool) -> tuple[float, int, int]:
    """Seconds, peak memory of this process and size of the bundle, in bytes."""
    started = time.monotonic()
    decoder = DecoderRecipe(
        str(source), precision="int4", thresholds=Thresholds()
    )  # random weights: any result is fine
    bundle = edgepipe.export(Recipe(decoder, None, validate=validate), destination)
    size = sum(path.stat().st_size for path in bundle.folder.rglob("*") if path.is_file())
    return time.monotonic() - started, peak_rss_bytes(), size


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=22, help="of the model (default: %(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write raw numbers")
    options = parser.parse_args()
    rows, raw = [], []
    with tempfile.TemporaryDirectory() as temporary:
        source = Path(temporary) / "model"
        source.mkdir()
        float_bytes = make_model(source, options.layers)
        for validate in (False, True):
            destination = Path(temporary) / f"bundle-{validate}"
            with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
                seconds, peak, size = pool.submit(export, source, destination, validate).result()
            bound = float_bytes + 2 * GIB if validate else size + 3 * GIB // 2
            raw.append({"validate": validate, "seconds": seconds, "peak_rss_bytes": peak, "bound_bytes": bound})
            sizes = [f"{value / GIB:.2f}" for value in (float_bytes, size, peak, bound)]
            verdict = "yes" if peak <= bound else "NO"
            rows.append(["with" if validate else "without", f"{seconds:.0f}", *sizes, verdict])
    header = ["validation", "seconds", "model in float32, GiB", "output, GiB", "peak, GiB", "bound, GiB", "within"]
    print(table(header, rows))
    report(options, {"layers": options.layers, "exports": raw})


if __name__ == "__main__":
    main()
