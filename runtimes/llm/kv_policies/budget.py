"""A KV budget as the user types it: tokens, a share of the text, or memory."""

from __future__ import annotations

import math
import re
from fractions import Fraction

from edgepipe.errors import RecipeError

_UNITS = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30}


def parse_budget(text: str, *, total_tokens: int, bytes_per_token: int) -> int:
    """Tokens that a budget allows.

    Args:
        text: ``"512"`` (tokens), ``"20%"`` (of ``total_tokens``) or ``"64MiB"`` (of keys and values; KiB, MiB, GiB).
        total_tokens: length that the text may reach.
        bytes_per_token: keys and values of one token over all layers.

    Raises:
        RecipeError: the text is none of these, or allows no token.
    """
    found = re.fullmatch(r"\s*(\d{1,15}|\d{1,15}\.\d{1,15}(?=\s*[%KMG]))\s*(%|KiB|MiB|GiB)?\s*", text)
    if found is None:
        raise RecipeError(f"budget is {text!r}: expected tokens (512), a share (20%) or memory (64MiB)")
    number, unit = Fraction(found[1]), found[2]
    if unit == "%":
        tokens = math.ceil(total_tokens * number / 100)
    elif unit:
        tokens = math.floor(number * _UNITS[unit] / bytes_per_token)
    else:
        tokens = math.floor(number)
    if tokens < 1:
        raise RecipeError(f"budget {text!r} allows no token: one takes {bytes_per_token} bytes, give more")
    return tokens
