"""Where the cache is, or what to do when that cannot be known."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgepipe.cache import cache_folder
from edgepipe.errors import EdgepipeError


def test_the_chosen_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGEPIPE_CACHE_DIR", str(tmp_path / "mine"))
    assert cache_folder() == tmp_path / "mine"
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("EDGEPIPE_CACHE_DIR", "~/mine")
    assert cache_folder() == tmp_path / "mine"


@pytest.mark.parametrize("chosen", ["~nosuchuser/x", "~nosuchuser"])
def test_a_home_that_is_not_known(monkeypatch: pytest.MonkeyPatch, chosen: str) -> None:
    monkeypatch.setenv("EDGEPIPE_CACHE_DIR", chosen)
    with pytest.raises(EdgepipeError, match=f"EDGEPIPE_CACHE_DIR is {chosen}, whose home folder is unknown: set"):
        cache_folder()
