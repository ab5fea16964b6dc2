"""Budgets in tokens, percent and memory, by arithmetic."""

from __future__ import annotations

import pytest

from edgepipe.errors import RecipeError
from edgepipe.runtimes.llm.kv_policies.budget import parse_budget


@pytest.mark.parametrize(
    ("text", "tokens"),
    [("512", 512), ("20%", 200), ("0.1%", 1), ("12.5 %", 125), ("1MiB", 1024), ("64KiB", 64), ("0.5GiB", 524288)],
)
def test_reads_tokens_shares_and_memory(text: str, tokens: int) -> None:
    assert parse_budget(text, total_tokens=1000, bytes_per_token=1024) == tokens


@pytest.mark.parametrize(
    "text", ["", "many", "-5", "0", "0%", "10MB", "1023B", "1KiB %", "nan", "1e3", "12.7", "9" * 5000]
)
def test_anything_else_is_an_error(text: str) -> None:
    with pytest.raises(RecipeError, match="budget"):
        parse_budget(text, total_tokens=1000, bytes_per_token=2048)
