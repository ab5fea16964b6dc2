"""A bundle is whole or an error names what is wrong with it."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgepipe.errors import BundleError
from edgepipe.pipeline.bundle import Bundle
from edgepipe.pipeline.bundle_writer import write_bundle
from edgepipe.pipeline.manifest import SCHEMA_VERSION

FILES = {
    "target/config.json": b"{}",
    "target/onnx/model.onnx": bytes(range(256)) * 20,
    "target/onnx/model.onnx.data": os.urandom(5000),
    "reference/target.npz": b"golden",
}
LISTED = [*FILES, "README.md"]
ALL = [*LISTED, "edgepipe.json", "SHA256SUMS"]


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory, manifest: dict[str, Any]) -> Path:
    return write(tmp_path_factory.mktemp("pristine") / "bundle", manifest)


@pytest.fixture
def bundle(pristine: Path, tmp_path: Path) -> Path:
    shutil.copytree(pristine, tmp_path / "bundle")
    return tmp_path / "bundle"


def write(folder: Path, manifest: dict[str, Any], files: dict[str, bytes] = FILES) -> Path:
    with write_bundle(folder) as draft:
        draft.manifest = manifest
        for name, content in files.items():
            path = draft.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
    return folder


def test_what_is_written_opens(bundle: Path) -> None:
    opened = Bundle.open(bundle)
    assert opened.path("target/onnx/model.onnx").read_bytes() == FILES["target/onnx/model.onnx"]
    assert set(opened.manifest["files"]) == set(LISTED)
    for name, content in FILES.items():
        expected = {"sha256": hashlib.sha256(content).hexdigest(), "bytes": len(content)}
        assert opened.manifest["files"][name] == expected


def test_sha256sum_accepts_it(bundle: Path) -> None:
    if shutil.which("sha256sum") is None:
        pytest.skip("sha256sum is not installed")
    done = subprocess.run(["sha256sum", "-c", "--strict", "SHA256SUMS"], cwd=bundle, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == len(ALL) - 1


def test_same_content_has_the_same_id(pristine: Path, tmp_path: Path, manifest: dict[str, Any]) -> None:
    first, again = Bundle.open(pristine), Bundle.open(write(tmp_path / "again", manifest))
    other = Bundle.open(write(tmp_path / "other", manifest, FILES | {"target/config.json": b"[]"}))
    assert first.manifest["bundle_id"] == again.manifest["bundle_id"] != other.manifest["bundle_id"]


@pytest.mark.parametrize("name", ALL)
def test_a_removed_file_is_named(bundle: Path, name: str) -> None:
    (bundle / name).unlink()
    with pytest.raises(BundleError, match=name):
        Bundle.open(bundle)


@pytest.mark.parametrize("name", ALL)
def test_an_emptied_file_is_named(bundle: Path, name: str) -> None:
    (bundle / name).write_bytes(b"")
    with pytest.raises(BundleError, match=name):
        Bundle.open(bundle)


@pytest.mark.parametrize("name", ALL)
def test_a_folder_in_place_of_a_file_is_named(bundle: Path, name: str) -> None:
    (bundle / name).unlink()
    (bundle / name).mkdir()
    with pytest.raises(BundleError, match=name):
        Bundle.open(bundle)


@settings(max_examples=150)
@given(data=st.data())
def test_any_damage_is_found_and_named(pristine: Path, data: st.DataObject) -> None:
    """One byte more or less, or one bit flipped, anywhere."""
    Bundle.open(pristine)  # the stamp that says it is verified must not hide the damage
    name = data.draw(st.sampled_from(ALL))
    path = pristine / name
    content = path.read_bytes()
    damage = data.draw(st.sampled_from(["truncate", "extend", "flip"]))
    if damage == "truncate":
        damaged = content[: data.draw(st.integers(0, len(content) - 1))]
    elif damage == "extend":
        damaged = content + data.draw(st.binary(min_size=1, max_size=3))
    else:
        bit = data.draw(st.integers(0, len(content) * 8 - 1))
        flipped = bytearray(content)
        flipped[bit // 8] ^= 1 << (bit % 8)
        damaged = bytes(flipped)
    before = path.stat()
    path.write_bytes(damaged)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    try:
        with pytest.raises(BundleError) as caught:
            Bundle.open(pristine)
        assert name in str(caught.value)
        assert "\n" not in str(caught.value)
    finally:
        path.write_bytes(content)
    Bundle.open(pristine)


def test_hashes_are_read_once(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Bundle.open(bundle)

    def fail(self: Bundle) -> None:
        raise AssertionError("hashed again")

    monkeypatch.setattr(Bundle, "verify", fail)
    Bundle.open(bundle)
    (bundle / "target/config.json").write_bytes(b"[]")  # as long as before
    with pytest.raises(AssertionError, match="hashed again"):
        Bundle.open(bundle)


def test_without_verify_only_hashes_are_skipped(bundle: Path) -> None:
    config = bundle / "target/config.json"
    config.write_bytes(b"[]")
    Bundle.open(bundle, verify=False)
    config.write_bytes(b"[1]")
    with pytest.raises(BundleError, match="config.json"):
        Bundle.open(bundle, verify=False)


def test_a_cache_that_cannot_be_written_is_no_error(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("EDGEPIPE_CACHE_DIR", str(tmp_path / "file" / "cache"))
    Bundle.open(bundle)


@pytest.mark.parametrize(("version", "remedy"), [(SCHEMA_VERSION + 1, "upgrade"), (0, "export")])
def test_another_schema_version(bundle: Path, version: int, remedy: str) -> None:
    edit(bundle, schema_version=version)
    with pytest.raises(BundleError, match=f"edgepipe.json has schema version {version}.*{remedy}"):
        Bundle.open(bundle)


@pytest.mark.parametrize("name", ["../outside", "/etc/passwd", "target/../../outside", "C:/x", "..\\outside", ""])
def test_names_that_lead_out_of_the_bundle(bundle: Path, name: str) -> None:
    files = json.loads((bundle / "edgepipe.json").read_bytes())["files"]
    edit(bundle, files=files | {name: {"sha256": "0" * 64, "bytes": 0}})
    with pytest.raises(BundleError, match="leads out of the bundle"):
        Bundle.open(bundle)


def test_what_is_no_bundle(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="is no folder.*edgepipe export"):
        Bundle.open(tmp_path / "absent")
    with pytest.raises(BundleError, match="has no edgepipe.json"):
        Bundle.open(tmp_path)


def test_a_file_that_is_not_listed(bundle: Path) -> None:
    with pytest.raises(BundleError, match="no file draft/config.json"):
        Bundle.open(bundle).path("draft/config.json")


def edit(bundle: Path, **changes: object) -> None:
    """Change edgepipe.json and bring SHA256SUMS along, as somebody who means it would."""
    path = bundle / "edgepipe.json"
    path.write_text(json.dumps(json.loads(path.read_bytes()) | changes))
    sums = (bundle / "SHA256SUMS").read_text().splitlines(keepends=True)
    own = f"{hashlib.sha256(path.read_bytes()).hexdigest()}  edgepipe.json\n"
    (bundle / "SHA256SUMS").write_text("".join(own if line.endswith("  edgepipe.json\n") else line for line in sums))
