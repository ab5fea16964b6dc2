"""README.md of a bundle: what it is, where it comes from, how far it strays from there, how to run it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from edgepipe.runtimes.llm.spec import DecoderSpec


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
            f"# {manifest['components']['target']['source']['name']} for the edge",
            "",
            f"A bundle written by edgepipe {manifest['edgepipe_version']}. On a device:",
            "",
            "    pip install edgepipe",
            '    edgepipe run . "Hello"',
            "",
            "| | source | shape | precision |",
            "|---|---|---|---|",
            *(_component_row(name, component) for name, component in manifest["components"].items()),
            "",
            *_validation(manifest["validation"]),
            "`edgepipe.json` describes every file; `sha256sum -c SHA256SUMS` checks them.",
            "",
        ]
    )


def _component_row(name: str, component: dict[str, Any]) -> str:
    source, spec = component["source"], DecoderSpec.from_json(component["spec"])
    revision = f" at {source['revision']}" if source["revision"] else ""
    shape = (
        f"{spec.architecture}, {spec.num_layers} layers, hidden size {spec.hidden_size}, vocabulary {spec.vocab_size}, "
        f"context {spec.context_length}, {spec.kv_bytes_per_token} bytes of KV cache per token"
    )
    precision = ", ".join(f"{part} {bits}" for part, bits in component["precision"].items())
    return f"| {name} | {source['name']}{revision} ({source['licence'] or 'licence unknown'}) | {shape} | {precision} |"


def figures(result: dict[str, Any]) -> str:
    """One line of what validating a component showed."""
    return ", ".join(f"{name.replace('_', ' ')} {value:.4g}" for name, value in result["plain"].items())


def _validation(validation: dict[str, Any]) -> Iterator[str]:
    """What was measured between each exported component and its source in float32."""
    for name, result in validation.items():
        yield f"Against its source in float32, {name}: {figures(result)}."
        yield ""
    if not validation:
        yield "This bundle was not validated against its source."
        yield ""
