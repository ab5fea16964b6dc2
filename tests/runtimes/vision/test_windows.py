"""Windows of an image, from an array or from rows that come once; and what is stitched of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgepipe.errors import EngineError, ImageError
from edgepipe.runtimes.vision.patch_stream import run_stage, run_streamed, run_whole
from edgepipe.runtimes.vision.plan import Memory, Region, TensorFormat, Tile, VisionPlan, read_plan, write_plan
from edgepipe.runtimes.vision.tflite_micro import TfliteMicro, TfliteMicroArena
from edgepipe.runtimes.vision.windows import windows


def plan_of(height: int, width: int, rows: int, columns: int, halo: int, *, skipped: int = 0) -> VisionPlan:
    """A stage of the image's own size, whose tiles read ``halo`` pixels around; the last rows may not be read."""
    image = TensorFormat((1, height, width, 2), "int8", 0.5, 0)
    stage = TensorFormat((1, height - skipped, width, 2), "int8", 0.5, 0)

    def cut(size: int, parts: int) -> list[tuple[int, int]]:
        return [(part * size // parts, (part + 1) * size // parts) for part in range(parts)]

    def around(span: tuple[int, int], size: int) -> tuple[int, int]:
        return max(span[0] - halo, 0), min(span[1] + halo, size)

    tiles = [
        Tile("tile", Region(around(high, height - skipped), around(wide, width)), Region(high, wide))
        for high in cut(height - skipped, rows)
        for wide in cut(width, columns)
    ]
    memory = Memory(1, 1, None, TfliteMicro(TfliteMicroArena(1, 1), None, None))
    return VisionPlan(image, stage, stage, 1, (rows, columns), tuple(tiles), "streamed", 1, 1, memory, None, None, None)


def image_of(plan: VisionPlan, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(-128, 128, plan.input.shape, np.int8)


class Camera:
    """Gives rows once, and knows how many it has given."""

    def __init__(self, image: np.ndarray) -> None:
        self.image = image
        self.given = 0

    def __iter__(self) -> Iterator[np.ndarray]:
        for row in self.image[0]:
            self.given += 1
            yield row.copy()


@settings(max_examples=150)
@given(
    height=st.integers(1, 14),
    width=st.integers(1, 9),
    rows=st.integers(1, 14),
    columns=st.integers(1, 9),
    halo=st.integers(0, 6),
    skipped=st.integers(0, 3),
)
def test_rows_give_the_windows_that_the_whole_image_gives(
    height: int, width: int, rows: int, columns: int, halo: int, skipped: int
) -> None:
    skipped = min(skipped, height - 1)
    plan = plan_of(height, width, min(rows, height - skipped), min(columns, width), halo, skipped=skipped)
    image = image_of(plan)
    for (_, window), tile in zip(windows(plan, Camera(image)), plan.tiles, strict=True):
        (top, bottom), (left, right) = tile.window.rows, tile.window.columns
        assert np.array_equal(window, image[:, top:bottom, left:right])
        assert window.flags.c_contiguous


def test_no_row_is_asked_for_before_it_is_needed() -> None:
    plan = plan_of(20, 4, 5, 1, halo=2)
    camera = Camera(image_of(plan))
    asked = [camera.given for _ in windows(plan, camera)]
    assert asked == [6, 10, 14, 18, 20]


def test_memory_is_that_of_one_band_of_rows() -> None:
    """However tall the image is."""
    import tracemalloc

    peaks = []
    for height in (40, 400):
        plan = plan_of(height, 2000, height // 4, 1, halo=1)
        row = np.zeros((2000, 2), np.int8)
        tracemalloc.start()
        for _ in windows(plan, (row for _ in range(height))):
            pass
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.2 * peaks[0]
    assert peaks[1] < 4 * 6 * row.nbytes  # the band, what of it is kept, a window


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (11, "the image ends after 11 rows: the model takes 12"),
        (0, "the image ends after 0 rows: the model takes 12"),
        (13, "more rows come after the 12 that the model takes"),
    ],
)
@pytest.mark.parametrize("skipped", [0, 3])
def test_too_few_rows_and_too_many(rows: int, message: str, skipped: int) -> None:
    plan = plan_of(12, 4, 3, 2, halo=1, skipped=skipped)
    with pytest.raises(ImageError, match=message):
        list(windows(plan, [np.zeros((4, 2), np.int8)] * rows))


@pytest.mark.parametrize("row", [np.zeros((5, 2), np.int8), np.zeros((4, 2), np.uint8), np.zeros(8, np.int8)])
def test_a_row_of_another_kind(row: np.ndarray) -> None:
    plan = plan_of(6, 4, 2, 1, halo=0)
    rows = [np.zeros((4, 2), np.int8), row]
    with pytest.raises(ImageError, match=r"row 1 is .*the model takes int8 of shape \(4, 2\)"):
        list(windows(plan, rows))


@pytest.mark.parametrize("image", [np.zeros((1, 5, 4, 2), np.int8), np.zeros((1, 6, 4, 2), np.float32)])
def test_an_array_of_another_kind(image: np.ndarray) -> None:
    with pytest.raises(ImageError, match=r"the model takes int8 of shape \(1, 6, 4, 2\)"):
        list(windows(plan_of(6, 4, 2, 1, halo=0), image))


class Identity:
    """An engine whose tiles are the middles of their windows."""

    def __init__(self, plan: VisionPlan) -> None:
        self.tiles = iter(plan.tiles)
        self.seen: list[str] = []

    def run(self, part: str, image: np.ndarray) -> np.ndarray:
        self.seen.append(part)
        if part != "tile":
            return image
        tile = next(self.tiles)
        top, left = (tile.output.rows[0] - tile.window.rows[0], tile.output.columns[0] - tile.window.columns[0])
        rows, columns = tile.output.shape
        return image[:, top : top + rows, left : left + columns]

    def activation_bytes(self, part: str) -> int:
        raise NotImplementedError


def test_tiles_are_stitched_where_they_belong() -> None:
    plan = plan_of(13, 11, 4, 3, halo=2)
    image, engine = image_of(plan), Identity(plan)
    assert np.array_equal(run_streamed(engine, plan, Camera(image)), image)
    assert engine.seen == ["tile"] * 12 + ["tail"]
    engine = Identity(plan)
    assert np.array_equal(run_whole(engine, plan, iter(image[0])), image)
    assert engine.seen == ["whole"]


def test_an_engine_whose_tiles_have_another_size() -> None:
    plan = plan_of(8, 8, 2, 2, halo=1)

    class Other(Identity):
        def run(self, part: str, image: np.ndarray) -> np.ndarray:
            return image

    with pytest.raises(EngineError, match="do not belong together"):
        run_stage(Other(plan), plan, image_of(plan))


def test_only_windows_of_a_mapped_file_are_read(tmp_path: Path) -> None:
    plan = plan_of(12, 6, 3, 2, halo=1)
    image = image_of(plan)
    np.save(tmp_path / "image.npy", image)
    mapped: Any = np.load(tmp_path / "image.npy", mmap_mode="r")
    engine = Identity(plan)
    assert np.array_equal(run_streamed(engine, plan, mapped), image)


def test_a_plan_reads_back(tmp_path: Path) -> None:
    plan = plan_of(13, 11, 4, 3, halo=2, skipped=1)
    write_plan(plan, tmp_path / "plan.json")
    assert read_plan(tmp_path / "plan.json") == plan
