"""README.md of a bundle: what it is, where it comes from, how far it strays from there, how to run it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from edgepipe.devices.boards import find_board
from edgepipe.runtimes.llm.spec import DecoderSpec
from edgepipe.runtimes.mcu.board import Board


def model_card(manifest: dict[str, Any]) -> str:
    """The card of a bundle, from its edgepipe.json; the lines between ``---`` are read by model hubs."""
    sources = [component["source"] for component in manifest["components"].values()]
    # Only what came from a hub has a revision, and a name that is a link there.
    base_models = [f"- {source['name']}" for source in sources if source["revision"]]
    return "\n".join(
        [
            "---",
            f"license: {(manifest.get('licence') or 'other').lower()}",
            "library_name: edgepipe",
            *(["base_model:", *base_models] if base_models else []),
            "---",
            "",
            f"# {' and '.join(source['name'] for source in sources)} for the edge",
            "",
            f"A bundle written by edgepipe {manifest['edgepipe_version']}. On a device:",
            "",
            *(f"    {line}" for line in _commands(manifest)),
            "",
            "| | source | shape | precision |",
            "|---|---|---|---|",
            *(_component_row(name, component) for name, component in manifest["components"].items()),
            "",
            *_tflite_micro(manifest["components"]),
            *_validation(manifest["validation"]),
            "`edgepipe.json` describes every file; `sha256sum -c SHA256SUMS` checks them.",
            "",
        ]
    )


def _commands(manifest: dict[str, Any]) -> Iterator[str]:
    """What to type on a device, or where a board is plugged in."""
    components = manifest["components"]
    formats = set(components["vision"]["formats"]) if "vision" in components else set()
    firmware, engines = formats & {"firmware"}, formats - {"firmware"}
    of_text = list(components["target"]["formats"]) if "target" in components else ["onnx"]
    needed = {"litert"} if engines else set()
    if "onnx" not in of_text:  # which the base install runs
        needed.add({"tflite": "litert"}.get(of_text[0], of_text[0]))
    extras = [*(["vision"] if formats else []), *sorted(needed), *(["mcu"] if firmware else [])]
    yield f"pip install 'edgepipe[{','.join(extras)}]'" if extras else "pip install edgepipe"
    if "target" in components:
        yield 'edgepipe run . "Hello"'
    if engines:
        yield "edgepipe run . --image photo.jpg"
    if firmware:
        yield from board_commands(".", find_board(manifest["recipe"]["vision"]["board"]))


def board_commands(bundle: str, board: Board) -> Iterator[str]:
    """What to type for the firmware in a bundle, whose name a shell takes as it is."""
    if board.flasher is None and board.qemu is not None:
        yield f"edgepipe run --image photo.jpg --device qemu:{board.name} {bundle}"
    else:
        yield f"edgepipe flash {bundle}"
        yield f"edgepipe run --image photo.jpg --device mcu:/dev/ttyACM0 {bundle}"


def _tflite_micro(components: dict[str, Any]) -> Iterator[str]:
    if "vision" in components:
        yield f"{tflite_micro_arenas(components['vision']['memory']['tflite_micro'])}."
        yield ""


def _component_row(name: str, component: dict[str, Any]) -> str:
    if component["kind"] == "vision":
        source = component["source"]
        return (
            f"| {name} | {source['name']} ({source['licence'] or 'licence unknown'}) | {shape_of(component)} | int8 |"
        )
    source, spec = component["source"], DecoderSpec.from_json(component["spec"])
    revision = f" at {source['revision']}" if source["revision"] else ""
    shape = (
        f"{spec.architecture}, {spec.num_layers} layers, hidden size {spec.hidden_size}, vocabulary {spec.vocab_size}"
        f"{'' if spec.output_vocab_size is None else f' (guesses {spec.output_vocab_size} of it)'}, "
        f"context {spec.context_length}, {spec.kv_bytes_per_token} bytes of KV cache per token"
    )
    precision = ", ".join(f"{part} {bits}" for part, bits in component["precision"].items())
    return f"| {name} | {source['name']}{revision} ({source['licence'] or 'licence unknown'}) | {shape} | {precision} |"


def shape_of(vision: dict[str, Any]) -> str:
    """The image that a vision model takes, its patches and its memory."""
    memory = vision["memory"]
    image, grid = "x".join(map(str, vision["input"][1:])), "x".join(map(str, vision["grid"]))
    whole = f"{memory['whole_bytes'] / 1024:.1f} KiB of activations (edgepipe's C runtime)"
    if vision["grid"] == [1, 1]:
        return f"{image} image at once, {whole}"
    return f"{image} image in {grid} patches, {memory['planned_bytes'] / 1024:.1f} KiB where the whole takes {whole}"


def tflite_micro_arenas(memory: dict[str, Any]) -> str:
    """What a vision model takes in TFLite Micro: ``tflite_micro`` of its memory in plan.json."""
    parts = [f"whole {_arena(memory['whole'])}"]
    if drop_in := memory["drop_in"]:
        grid = "x".join(map(str, drop_in["grid"]))
        parts.append(f"model.split.tflite ({grid} patches) {_arena(drop_in['arena'])}")
    if memory["largest_part"]:
        parts.append(f"largest part of the streamed model {_arena(memory['largest_part'])}")
    return f"TFLite Micro's arena, predicted for a 64-bit host, activations + its own: {', '.join(parts)}"


def _arena(arena: dict[str, int]) -> str:
    """KiB of activations, of TFLite Micro's own structures, and of both."""
    head, tail = arena["head_bytes"] / 1024, arena["tail_bytes"] / 1024
    return f"{head:,.1f} + {tail:,.1f} = {head + tail:,.1f} KiB"


def figures(result: dict[str, Any]) -> str:
    """One line of what validating a component showed."""
    if "formats" not in result:  # of a vision model
        return "; ".join(f"{name}: {in_words(found)}" for name, found in result.items())
    formats = {form: in_words(found["plain"]) for form, found in result["formats"].items()}
    return "; ".join(f"{form}: {words}" if len(formats) > 1 else words for form, words in formats.items())


def in_words(found: dict[str, Any]) -> str:
    parts = [f"{name.replace('_', ' ')} {value:.4g}" for name, value in found.items() if value is not None]
    return ", ".join(parts)


def _validation(validation: dict[str, Any]) -> Iterator[str]:
    """What was measured between each exported component and its source."""
    for name, result in validation.items():
        source = "the whole model in TFLite's reference kernels" if name == "vision" else "its source in float32"
        if result:
            yield f"Against {source}, {name}: {figures(result)}."
            yield ""
    if not validation:
        yield "This bundle was not validated against its source."
        yield ""
