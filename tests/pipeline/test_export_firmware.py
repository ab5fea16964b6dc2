"""Exporting firmware: what is in the bundle, and what is refused."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from edgepipe.devices.boards import find_board
from edgepipe.errors import BundleError, DoesNotFit, RecipeError
from edgepipe.exporters.vision import firmware
from edgepipe.pipeline import cli_export
from edgepipe.pipeline.bundle import Bundle
from edgepipe.pipeline.export import export
from edgepipe.pipeline.recipe import Recipe
from edgepipe.pipeline.vision_recipe import VisionRecipe
from edgepipe.pipeline.vision_session import VisionOptions, VisionSession


def recipe(model: Path, **options: Any) -> Recipe:
    return Recipe(vision=VisionRecipe(str(model), formats=("firmware",), **options))


@pytest.mark.parametrize(("sram", "tiles"), [("22K", 1), ("15K", 2), (None, 1)])
def test_firmware_stands_in_the_bundle(sram: str | None, tiles: int, tiny_vision: Path, tmp_path: Path) -> None:
    """Split as the plan says, every file of it listed with its hash, for the board that was named."""
    bundle = Bundle.open(export(recipe(tiny_vision, board="nrf52840", sram=sram), tmp_path / "bundle").folder)
    found = bundle.manifest["components"]["vision"]
    assert found["formats"] == {
        "firmware": {"makefile": "vision/firmware/Makefile", "header": "vision/firmware/edgepipe_model.h"}
    }
    folder = bundle.folder / "vision/firmware"
    for path in folder.rglob("*"):
        if path.is_file():
            entry = bundle.manifest["files"][path.relative_to(bundle.folder).as_posix()]
            assert entry["sha256"] == hashlib.sha256(path.read_bytes()).hexdigest()
    assert {path.name for path in (folder / "board").iterdir()} == {"start.c", "nrf52.c"}
    assert found["grid"][0] * found["grid"][1] >= tiles
    assert f"#define EDGEPIPE_TILES {found['grid'][0] * found['grid'][1]}\n" in (folder / "model.h").read_text()
    assert f"#define EDGEPIPE_ARENA_BYTES {found['memory']['planned_bytes']}\n" in (folder / "model.h").read_text()
    assert "BOARD := nrf52840\n" in (folder / "board.mk").read_text()


def test_a_resident_image_is_one_patch(tiny_vision: Path, tmp_path: Path) -> None:
    bundle = export(recipe(tiny_vision, board="nrf52840", sram="15K", mode="resident"), tmp_path / "bundle")
    assert bundle.manifest["components"]["vision"]["grid"] != [1, 1]
    header = (bundle.folder / "vision/firmware/model.h").read_text()
    assert "#define EDGEPIPE_TILES 1\n" in header
    assert f"#define EDGEPIPE_LARGEST_PATCH_BYTES {24 * 20 * 3}\n" in header


def test_firmware_is_for_a_board(tiny_vision: Path) -> None:
    with pytest.raises(RecipeError, match="give --board"):
        recipe(tiny_vision, sram="64K")


def test_what_does_not_fit_leaves_no_bundle(tiny_vision: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Code that fills the flash."""
    monkeypatch.setattr(firmware, "_CODE_BYTES", 2**20)
    with pytest.raises(DoesNotFit, match=r"nrf52840 has 1,024.0 KiB of flash, the firmware needs 1,0\d\d"):
        export(recipe(tiny_vision, board="nrf52840"), tmp_path / "bundle")
    assert not (tmp_path / "bundle").exists()


@pytest.mark.parametrize(
    ("board", "device"), [("netduinoplus2", "qemu:netduinoplus2"), ("nrf52840", "mcu:/dev/ttyACM0"), ("rp2040", "mcu:")]
)
@pytest.mark.parametrize("formats", ["firmware", "onnx,firmware"])
def test_what_to_type_is_what_there_is(
    formats: str, board: str, device: str, tiny_vision: Path, tmp_path: Path
) -> None:
    """The hints of an export and the card of its bundle; here, for an engine; on a board, for firmware."""
    folder = tmp_path / "my bundle"
    flags = ["--formats", formats, "--board", board, "--no-validate", "-o", folder]
    done = CliRunner().invoke(cli_export.command, ["--vision", str(tiny_vision), *map(str, flags)])
    assert done.exception is None
    hints = [line.removeprefix("try: ") for line in done.stdout.splitlines() if line.startswith("try: ")]
    card = (folder / "README.md").read_text()
    typed = [line.strip() for line in card.splitlines() if line.startswith("    edgepipe ")]
    for lines, place in ((hints, "my bundle'"), (typed, " .")):
        assert any("flash" in line for line in lines) == (find_board(board).flasher is not None)
        assert any(f"--device {device}" in line for line in lines)
        assert any("run" in line and "--device" not in line for line in lines) == ("onnx" in formats)
        assert all(place in line for line in lines)
    assert ("litert" in card) == ("onnx" in formats)
    if formats == "firmware":
        with pytest.raises(BundleError, match="holds a board's firmware, and nothing for this computer: give --device"):
            VisionSession(Bundle.open(folder), VisionOptions())
