"""Import on first use: the tables of verbs, engines and policies name their code as ``"module:attribute"``."""

from __future__ import annotations

from importlib import import_module
from typing import Any


def load(target: str) -> Any:
    """Import ``"package.module:attribute"`` and return the attribute.

    >>> load("math:floor")(2.5)
    2
    """
    module, _, attribute = target.partition(":")
    return getattr(import_module(module), attribute)
