"""How a part of `tokenizer.json` becomes code: a table from "type" to builder, and one error for the rest."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from edgepipe.errors import TokenizerError

Built = TypeVar("Built")
Spec = Mapping[str, Any]
"""A component as tokenizer.json holds it: {"type": ..., its options}."""


def unsupported(what: str) -> TokenizerError:
    """The error for anything that only `tokenizers` itself can do."""
    return TokenizerError(f"{what} is not supported by the built-in tokenizer reader: pip install tokenizers")


def build(kind: str, spec: Spec, builders: Mapping[str, Callable[[Spec], Built]]) -> Built:
    """Build the component `spec`; `kind` ("normalizer", ...) is for the error, which names the type not understood."""
    builder = builders.get(spec["type"])
    if builder is None:
        raise unsupported(f"{kind} {spec['type']}")
    return builder(spec)
