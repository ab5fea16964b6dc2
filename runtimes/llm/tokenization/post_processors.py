"""Post-processors: functions that put special tokens around the token ids of a text."""

from __future__ import annotations

from collections.abc import Callable

from edgepipe.runtimes.llm.tokenization.components import Spec, build

PostProcessor = Callable[[list[int]], list[int]]


def build_post_processor(spec: Spec | None) -> PostProcessor:
    """The "post_processor" of tokenizer.json as a function. Raises `TokenizerError` naming a type it does not know."""
    return (lambda ids: ids) if spec is None else build("post-processor", spec, _BUILDERS)


def _sequence(spec: Spec) -> PostProcessor:
    steps = [build_post_processor(step) for step in spec["processors"]]

    def process(ids: list[int]) -> list[int]:
        for step in steps:
            ids = step(ids)
        return ids

    return process


def _template(spec: Spec) -> PostProcessor:
    parts: list[list[int] | None] = []  # None: here goes the text
    for part in spec["single"]:
        parts.append(spec["special_tokens"][part["SpecialToken"]["id"]]["ids"] if "SpecialToken" in part else None)
    return lambda ids: [token for part in parts for token in (ids if part is None else part)]


_BUILDERS: dict[str, Callable[[Spec], PostProcessor]] = {
    "Sequence": _sequence,
    "TemplateProcessing": _template,
    "ByteLevel": lambda spec: lambda ids: ids,  # it moves offsets, which nobody asks for here
}
