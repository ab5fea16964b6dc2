"""Building what a bundle from anywhere holds: it is compiled, and nothing in it is obeyed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from edgepipe.devices.mcu_line import BAUD
from edgepipe.errors import BundleError, EdgepipeError
from edgepipe.pipeline.build_firmware import build_firmware, bundle_firmware, keep, linker_map
from edgepipe.pipeline.bundle import CHECKSUMS, Bundle, checksums, sha256
from edgepipe.pipeline.export import export
from edgepipe.pipeline.manifest import MANIFEST
from edgepipe.pipeline.recipe import Recipe
from edgepipe.pipeline.vision_recipe import VisionRecipe

missing = [tool for tool in ("make", "arm-none-eabi-gcc") if shutil.which(tool) is None]
pytestmark = pytest.mark.skipif(bool(missing), reason=f"no {', '.join(missing)}")


@pytest.fixture(scope="module")
def written(tiny_vision: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    recipe = VisionRecipe(str(tiny_vision), formats=("firmware",), board="netduinoplus2")
    return export(Recipe(vision=recipe), tmp_path_factory.mktemp("written") / "bundle").folder


@pytest.fixture
def altered(written: Path, tmp_path: Path) -> Callable[..., Bundle]:
    """``altered({"board.mk": lambda text: ...})`` → a bundle whose firmware has such files, hashes and all."""

    def alter(changes: dict[str, Callable[[str], str]]) -> Bundle:
        folder = Path(shutil.copytree(written, tmp_path / "bundle with 'spaces'"))
        manifest = json.loads((folder / MANIFEST).read_text())
        for name, change in changes.items():
            path = folder / "vision/firmware" / name
            path.write_text(change(path.read_text() if path.exists() else ""))
            entry = {"sha256": sha256(path), "bytes": path.stat().st_size}
            manifest["files"][path.relative_to(folder).as_posix()] = entry
        (folder / MANIFEST).write_text(json.dumps(manifest))
        (folder / CHECKSUMS).write_text(checksums(manifest["files"], sha256(folder / MANIFEST)))
        return Bundle.open(folder)

    return alter


def build(bundle: Bundle, baud: int = BAUD) -> Path:
    return build_firmware(bundle, bundle_firmware(bundle), baud)


def test_it_is_the_program_that_the_bundles_own_makefile_builds(written: Path, tmp_path: Path) -> None:
    subprocess.run(["make", "-s", "-C", written / "vision/firmware", f"BUILD={tmp_path / 'build'}"], check=True)
    pieces = [tmp_path / "right.bin", tmp_path / "found.bin"]
    for program, piece in zip((tmp_path / "build/firmware.elf", build(Bundle.open(written))), pieces, strict=True):
        subprocess.run(["arm-none-eabi-objcopy", "-O", "binary", program, piece], check=True)
    assert pieces[0].read_bytes() == pieces[1].read_bytes()


def test_nothing_in_a_bundle_is_run(
    altered: Callable[..., Bundle], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither by make, nor by a shell that make starts, nor as a part of the compiler."""
    touch = f"$(shell touch {tmp_path}/ran)\n"
    bundle = altered(
        {
            "Makefile": lambda text: touch + text,
            "GNUmakefile": lambda _: touch,
            "board.mk": lambda text: touch + text.replace("CORE_FLAGS := ", "CORE_FLAGS := -fplugin=./kernels/add.c "),
            f"$$(shell touch {str(tmp_path).replace('/', '$(S)')}).c": lambda _: "#error compiled\n",
            "a;touch ran;.c": lambda _: "#error compiled\n",
            "-fplugin=x.c": lambda _: "#error compiled\n",
            "kernels/other.mk": lambda _: touch,
        }
    )
    monkeypatch.setenv("PROGRAM", f"$(shell touch {tmp_path}/ran)")
    monkeypatch.setenv("MAKEFLAGS", "--eval=$(error obeyed)")
    monkeypatch.setenv("BAUD", "300")
    program = build(bundle)
    assert program.read_bytes()[:4] == b"\x7fELF"
    assert not list(tmp_path.rglob("ran"))


def test_a_file_that_the_manifest_does_not_list_is_left_out(altered: Callable[..., Bundle]) -> None:
    bundle = altered({})
    (bundle.folder / "vision/firmware/more.c").write_text("#error compiled\n")
    assert build(bundle).is_file()


def test_a_damaged_file_is_an_error(altered: Callable[..., Bundle]) -> None:
    folder = altered({}).folder
    source = folder / "vision/firmware/main.c"
    source.write_text(source.read_text().replace("ep_greet", "ep_great"))
    with pytest.raises(BundleError, match=r"main\.c is damaged: its SHA-256 is not the one"):
        Bundle.open(folder)


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text.replace("COLUMN_LENGTH := ", "COLUMN_LENGTH := $(shell touch ran)"),
        lambda text: text.replace("KEEP_IMAGE", "KEEP"),
        lambda text: text.replace("BOARD := ", "BOARD := ../"),
    ],
)
def test_settings_that_are_no_numbers(altered: Callable[..., Bundle], change: Callable[[str], str]) -> None:
    with pytest.raises(BundleError, match=r"board.mk was not written by this edgepipe: export the bundle again"):
        build(altered({"board.mk": change}))


def test_source_that_does_not_compile(altered: Callable[..., Bundle]) -> None:
    bundle = altered({"main.c": lambda _: "#error nothing to see\n"})
    with pytest.raises(EdgepipeError, match=r"^[^\n]+firmware: make fails \(main.c:1:2: error: [^\n]+\)[^\n]*$"):
        build(bundle)


@pytest.mark.parametrize(
    ("file", "source", "reason"),
    [
        ("main.c", "int main(void)\n{\n    return nothing;\n}\n", r"main.c:3:12: error: 'nothing' undeclared[^\n]*"),
        ("main.c", '#include "board.h"\n', r"[^\n]*undefined reference to `main'"),
        ("board.h", "#error nothing to see\n", r"board.h:1:2: error: #error nothing to see"),
    ],
)
def test_the_reason_is_the_line_that_says_it(
    altered: Callable[..., Bundle], file: str, source: str, reason: str
) -> None:
    with pytest.raises(EdgepipeError, match=rf"firmware: make fails \({reason}\): run it there to see why$"):
        build(altered({file: lambda _: source}))


def test_make_that_is_killed(written: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "make").write_text("#!/bin/sh\nkill -9 $$\n")
    (tmp_path / "make").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("EDGEPIPE_CACHE_DIR", str(tmp_path / "cache"))
    with pytest.raises(EdgepipeError, match=r"firmware: make fails \(code -9\): run it there to see why$"):
        build(Bundle.open(written))
    assert list((tmp_path / "cache/firmware").iterdir()) == []


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, r"edgepipe.json is damaged: components.vision.formats.firmware names no makefile; copy or export"),
        ({"makefile": "README.md"}, r"board.mk was not written by this edgepipe: export the bundle again"),
    ],
)
def test_a_manifest_that_says_wrongly_where_it_is(
    altered: Callable[..., Bundle], files: dict[str, str], message: str
) -> None:
    bundle = altered({})
    bundle.manifest["components"]["vision"]["formats"]["firmware"] = files
    with pytest.raises(BundleError, match=message):
        build(bundle)


@pytest.mark.skipif(sys.platform != "linux" or os.geteuid() != 0, reason="a full disk needs root, to mount one")
@pytest.mark.parametrize("size", ["16k", "200k"])
def test_a_full_disk(
    altered: Callable[..., Bundle], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: str
) -> None:
    bundle, disk = altered({}), tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", disk], capture_output=True).returncode:
        pytest.skip("no file system can be mounted here")
    try:
        monkeypatch.setenv("EDGEPIPE_CACHE_DIR", str(disk))
        with pytest.raises(EdgepipeError, match=r"[Nn]o space left on device"):
            build(bundle)
        with pytest.raises(EdgepipeError, match=r"[Nn]o space left on device; set EDGEPIPE_CACHE_DIR"):
            keep(bytes(2**20), disk / "firmware/key/firmware.bin")
        assert [path for path in (disk / "firmware").rglob("*") if path.is_file()] == []
    finally:
        subprocess.run(["umount", disk], check=True)


def test_what_a_killed_process_has_left_goes(written: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGEPIPE_CACHE_DIR", str(tmp_path))
    program = build(Bundle.open(written))
    left = tmp_path / f"firmware/.{program.parent.name[:50]}.edgepipe-partial-0123abcd"
    left.mkdir()
    (left / program.name).write_bytes(program.read_bytes()[:100])
    program.unlink()
    assert build(Bundle.open(written)) == program
    assert sorted(path.name for path in (tmp_path / "firmware").rglob("*")) == sorted(
        [program.parent.name, program.name, linker_map(program).name]
    )


def test_a_bundle_that_cannot_be_written_to(altered: Callable[..., Bundle]) -> None:
    bundle = altered({})
    for path in (*bundle.folder.rglob("*"), bundle.folder):
        path.chmod(path.stat().st_mode & ~0o222)
    before = sorted(path.name for path in bundle.folder.rglob("*"))
    assert build(bundle).is_file()
    assert sorted(path.name for path in bundle.folder.rglob("*")) == before
    for path in (bundle.folder, *bundle.folder.rglob("*")):
        path.chmod(path.stat().st_mode | 0o200)


def test_a_program_is_built_once(written: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = Bundle.open(written)
    programs = {baud: build(bundle, baud) for baud in (BAUD, 921600)}
    assert len(set(programs.values())) == 2
    monkeypatch.setenv("PATH", "")
    assert {baud: build(bundle, baud) for baud in programs} == programs
