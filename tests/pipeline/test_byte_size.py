"""Sizes as people type them."""

from __future__ import annotations

import click
import pytest

from edgepipe.pipeline.byte_size import ByteSize


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [("192K", 196_608), ("1M", 1_048_576), ("262144", 262_144), ("0.5m", 524_288), ("64 KiB", 65_536), ("2GB", 2**31)],
)
def test_sizes(text, nbytes):
    assert ByteSize().convert(text, None, None) == nbytes


@pytest.mark.parametrize("text", ["", "K", "-1K", "192T", "1.2.3", "many"])
def test_what_is_no_size(text):
    with pytest.raises(click.BadParameter, match="is no size"):
        ByteSize().convert(text, None, None)
