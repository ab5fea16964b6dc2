"""`edgepipe plan` on real models."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from edgepipe.errors import DoesNotFit, EdgepipeError, RecipeError
from edgepipe.pipeline.cli_plan import command


@pytest.fixture(scope="module")
def vww() -> str:
    path = (Path(__file__).parents[2] / "../shared/data/vision/vww_96_int8.tflite").resolve()
    if not path.is_file():
        pytest.skip(f"no real model: {path} is absent")
    return str(path)


def plan(*arguments: str) -> str:
    return CliRunner().invoke(command, arguments, catch_exceptions=False, standalone_mode=False).output


def test_tables_show_layers_the_chosen_plan_and_the_next_best(vww):
    output = plan(vww, "--sram", "48K")
    assert "DEPTHWISE_CONV_2D" in output
    # Input and output of the second pointwise convolution: 48x48x8 and 48x48x16.
    assert f"{48 * 48 * 24 / 1024:.1f} KiB" in output
    assert "plan    2x1 patches, split after node 3, streamed" in output
    assert output.count("x1 │") >= 5


def test_json_has_the_plan_and_memory_over_layers(vww):
    found = json.loads(plan(vww, "--sram", "48K", "--flash", "256K", "--json"))
    best, layers = found["plans"][0], found["layers"]
    assert (best["split"], best["rows"], best["columns"], best["mode"]) == (4, 2, 1, "streamed")
    assert best["window"] == [53, 96]
    assert best["arena_bytes"] <= 40 * 1024 < found["whole"]["arena_bytes"]
    assert best["macs_without_halo"] == found["whole"]["macs"] < best["macs"]
    assert len(layers) == 31
    assert max(layer["whole_bytes"] for layer in layers) == found["whole"]["arena_bytes"]
    # What alignment adds between buffers is of no layer.
    assert best["arena_bytes"] - 16 * 4 <= max(layer["planned_bytes"] for layer in layers) <= best["arena_bytes"]
    assert [layer["tile"] is not None for layer in layers] == [True] * 4 + [False] * 27
    # tflite-micro's print_allocations() of the whole model.
    assert found["tflite_micro"]["whole"]["head_bytes"] == 73_728
    assert sum(found["tflite_micro"]["whole"].values()) == pytest.approx(103_680, rel=0.01)


def test_a_board_gives_its_memory_and_options_count_before_it(vww):
    found = json.loads(plan(vww, "--board", "nrf52840", "--json"))
    assert (found["sram_bytes"], found["flash_bytes"]) == (256 * 1024, 1024 * 1024)
    assert found["plans"][0]["split"] is None
    assert json.loads(plan(vww, "--board", "nrf52840", "--sram", "48K", "--json"))["sram_bytes"] == 48 * 1024


def test_the_picture_is_an_image(vww, tmp_path):
    pillow = pytest.importorskip("PIL.Image")
    pytest.importorskip("matplotlib")
    plan(vww, "--sram", "48K", "--plot", str(tmp_path / "out.png"))
    with pillow.open(tmp_path / "out.png") as image:
        assert image.format == "PNG"
        assert len(image.convert("RGB").getcolors(1 << 24)) > 10


def test_a_picture_that_cannot_be_written_leaves_nothing_behind(vww, tmp_path):
    resource = pytest.importorskip("resource")
    pytest.importorskip("matplotlib")
    (tmp_path / "out.png").write_text("of yesterday")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))  # as on a full disk, the first bytes find room
    try:
        with pytest.raises(EdgepipeError, match=r"cannot write .*out.png \(File too large\): give another place"):
            plan(vww, "--sram", "48K", "--plot", str(tmp_path / "out.png"))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert [path.name for path in tmp_path.iterdir()] == ["out.png"]
    assert (tmp_path / "out.png").read_text() == "of yesterday"


def test_what_does_not_fit_says_what_would(vww):
    with pytest.raises(DoesNotFit, match="try --sram (\\d+)K") as failure:
        plan(vww, "--sram", "24K")
    needed = str(failure.value).rpartition(" ")[2]
    assert json.loads(plan(vww, "--sram", needed, "--json"))["plans"]


def test_mistakes_are_named(vww):
    with pytest.raises(RecipeError, match="give --sram"):
        plan(vww)
    with pytest.raises(EdgepipeError, match="no board"):
        plan(vww, "--board", "nothing")
    with pytest.raises(RecipeError, match="expected .png"):
        plan(vww, "--sram", "48K", "--plot", "out.doc")
    with pytest.raises(RecipeError, match="no folder absent to draw out.png in"):
        plan(vww, "--sram", "48K", "--plot", "absent/out.png")
    assert "is no size" in CliRunner().invoke(command, [vww, "--sram", "lots"]).output


@pytest.mark.slow
def test_the_built_in_mobilenet_v2_gets_the_plan_of_mcunet_v2():
    pytest.importorskip("litert_torch")
    found = json.loads(plan("mobilenet_v2", "--sram", "192K", "--json"))
    best = found["plans"][0]
    assert (best["rows"], best["columns"], best["window"], best["mode"]) == (4, 4, [75, 75], "streamed")
    assert found["whole"]["arena_bytes"] == 1372 * 1024
    assert best["arena_bytes"] <= 172 * 1024
    assert 1 < best["macs"] / best["macs_without_halo"] <= 1.1
