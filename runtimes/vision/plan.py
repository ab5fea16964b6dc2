"""plan.json: what the device must know of a vision model, and of the patches it is computed in."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from edgepipe.errors import BundleError
from edgepipe.runtimes.vision.json_fields import Fields, Wrong
from edgepipe.runtimes.vision.tflite_micro import TfliteMicro, read_tflite_micro

SCHEMA_VERSION = 1
DTYPES = ("int8", "uint8", "float32")
MODES = ("streamed", "resident")
# No image of a microcontroller has more rows, columns or channels.
LARGEST_SIDE = 2**16
# Nor more elements: 1280 x 960 pixels in colour are fewer. Activations may have more channels.
MAX_IMAGE_ELEMENTS = 2**22
MAX_TENSOR_ELEMENTS = 2**26


@dataclass(frozen=True)
class TensorFormat:
    """Shape and type of a tensor. Codes stand for ``real = scale * (code - zero_point)``; both None for float32."""

    shape: tuple[int, ...]
    dtype: str
    scale: float | None
    zero_point: int | None

    @property
    def nbytes(self) -> int:
        """Bytes of its elements."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize

    def real(self, codes: np.ndarray) -> np.ndarray:
        """Real values, float32, of codes."""
        if self.scale is None or self.zero_point is None:
            return codes.astype(np.float32)
        return (np.float32(self.scale) * (codes.astype(np.int32) - self.zero_point)).astype(np.float32)


@dataclass(frozen=True)
class Region:
    """Rows and columns of an image: first, and first no more."""

    rows: tuple[int, int]
    columns: tuple[int, int]

    @property
    def shape(self) -> tuple[int, int]:
        """How many rows and columns."""
        return self.rows[1] - self.rows[0], self.columns[1] - self.columns[0]

    def of(self, image: np.ndarray) -> np.ndarray:
        """A view of this part of an image ``[1, H, W, C]``."""
        return image[:, slice(*self.rows), slice(*self.columns)]


@dataclass(frozen=True)
class Tile:
    """A tile of the stage's ``output``, computed by the tile graph ``graph`` from a ``window`` of the image."""

    graph: str
    window: Region
    output: Region


@dataclass(frozen=True)
class Memory:
    """Bytes of activations in the arena of edgepipe's C runtime, and what TFLite Micro's arena takes.

    ``whole_bytes``: the model at once; ``planned_bytes``: by the plan. ``budget_bytes``: SRAM that the plan was made
    for, if one was given. ``tflite_micro``: has no operators that work in place, and counts its own structures.
    """

    whole_bytes: int
    planned_bytes: int
    budget_bytes: int | None
    tflite_micro: TfliteMicro


@dataclass(frozen=True)
class VisionPlan:
    """How an image becomes an answer.

    Attributes:
        input, output: of the whole model; the input is one image ``[1, H, W, C]``.
        stage: what the tiles are stitched to, the tail's input; None when the model runs as a whole.
        split: how many of the model's operators the tiles compute.
        grid: rows and columns of tiles; ``tiles`` stand row by row.
        mode: whether the planned arena holds the image (``resident``) or not (``streamed``).
        macs, whole_macs: multiply-accumulates of one inference, by the plan and of the whole model.
        mean, std: ``real = (pixel / 255 - mean) / std``, one value or one a channel. None: pixels are codes.
        labels: names of the classes, if known.
    """

    input: TensorFormat
    output: TensorFormat
    stage: TensorFormat | None
    split: int
    grid: tuple[int, int]
    tiles: tuple[Tile, ...]
    mode: str
    macs: int
    whole_macs: int
    memory: Memory
    mean: tuple[float, ...] | None
    std: tuple[float, ...] | None
    labels: tuple[str, ...] | None

    @property
    def parts(self) -> tuple[str, ...]:
        """The tile graphs' names, each once, in the order in which they first run."""
        return tuple(dict.fromkeys(tile.graph for tile in self.tiles))

    @property
    def num_classes(self) -> int | None:
        """How many classes the model tells apart; None if its output is no single list of scores."""
        classes = self.output.shape[-1]
        return classes if math.prod(self.output.shape) == classes else None

    def row(self, index: int) -> tuple[Tile, ...]:
        """The tiles of one row of the grid."""
        return self.tiles[index * self.grid[1] : (index + 1) * self.grid[1]]

    def to_json(self) -> dict[str, Any]:
        """A JSON-ready dict, as `read_plan` reads it back."""
        return {"schema_version": SCHEMA_VERSION, **asdict(self)}


def write_plan(plan: VisionPlan, path: Path) -> None:
    """Write ``plan`` as JSON."""
    path.write_text(json.dumps(plan.to_json()) + "\n", encoding="utf-8")


def read_plan(path: Path) -> VisionPlan:
    """Read what `write_plan` wrote, and see that its tiles cover the stage's output and can be computed row by row.

    Raises:
        BundleError: it is missing, damaged or of another schema version; the file and the key are named.
    """
    try:
        content = json.loads(path.read_bytes())
    except OSError as error:
        raise BundleError(f"{path}: {error.strerror}; copy or export the bundle again") from error
    except (ValueError, RecursionError) as error:
        raise _damaged(path, f"it is not JSON ({error})") from error
    version = content.get("schema_version") if isinstance(content, dict) else None
    if type(version) is int and version > SCHEMA_VERSION:
        raise BundleError(
            f"{path} has schema version {version}, this edgepipe reads {SCHEMA_VERSION}: pip install --upgrade edgepipe"
        )
    try:
        fields = Fields(content)
        fields.one_of("schema_version", (SCHEMA_VERSION,))
        plan = _plan(fields)
        _check_tiles(plan)
    except Wrong as error:
        raise _damaged(path, str(error)) from error
    return plan


def _damaged(path: Path, reason: str) -> BundleError:
    return BundleError(f"{path} is damaged: {reason}; copy or export the bundle again")


def _plan(fields: Fields) -> VisionPlan:
    image, output = _tensor(fields.table("input"), MAX_IMAGE_ELEMENTS), _tensor(fields.table("output"))
    if len(image.shape) != 4 or image.shape[0] != 1:
        raise Wrong(f"input.shape is {list(image.shape)}, expected one image [1, rows, columns, channels]")
    stage = fields.optional("stage", lambda: _tensor(fields.table("stage")))
    mean = fields.optional("mean", lambda: fields.numbers("mean"))
    std = fields.optional("std", lambda: fields.numbers("std"))
    if (mean is None) != (std is None):
        raise Wrong("mean and std are not given together")
    for key, values in (("mean", mean), ("std", std)):
        if values is not None and len(values) not in (1, image.shape[3]):
            raise Wrong(f"{key} has {len(values)} values, expected 1 or {image.shape[3]}, one a channel")
    if std is not None and 0 in std:
        raise Wrong("std has a 0, expected other numbers")
    memory = fields.table("memory")
    rows, columns = fields.whole_numbers("grid", 2, least=1, most=LARGEST_SIDE)
    plan = VisionPlan(
        input=image,
        output=output,
        stage=stage,
        split=fields.whole_number("split"),
        grid=(rows, columns),
        tiles=tuple(_tile(table) for table in fields.tables("tiles")),
        mode=fields.one_of("mode", MODES),
        macs=fields.whole_number("macs"),
        whole_macs=fields.whole_number("whole_macs"),
        memory=Memory(
            memory.whole_number("whole_bytes"),
            memory.whole_number("planned_bytes"),
            memory.optional("budget_bytes", lambda: memory.whole_number("budget_bytes")),
            read_tflite_micro(memory.table("tflite_micro")),
        ),
        mean=mean,
        std=std,
        labels=fields.optional("labels", lambda: fields.texts("labels")),
    )
    if plan.labels is not None and len(plan.labels) != plan.num_classes:
        raise Wrong(f"labels has {len(plan.labels)} names for {plan.num_classes or 'no'} classes")
    return plan


def _tensor(fields: Fields, most: int = MAX_TENSOR_ELEMENTS) -> TensorFormat:
    shape = fields.whole_numbers("shape", least=1, most=LARGEST_SIDE)
    if math.prod(shape) > most:
        raise Wrong(f"{fields.name}shape is {list(shape)}, {math.prod(shape)} elements, expected at most {most}")
    dtype = fields.one_of("dtype", DTYPES)
    if dtype == "float32":
        return TensorFormat(shape, dtype, None, None)
    scale = fields.number("scale")
    if scale <= 0:
        raise Wrong(f"{fields.name}scale is {scale}, expected more than 0")
    limits = np.iinfo(dtype)
    return TensorFormat(shape, dtype, scale, fields.whole_number("zero_point", least=limits.min, most=limits.max))


def _tile(fields: Fields) -> Tile:
    return Tile(fields.text("graph"), _region(fields.table("window")), _region(fields.table("output")))


def _region(fields: Fields) -> Region:
    (top, bottom), (left, right) = (fields.whole_numbers(key, 2, most=LARGEST_SIDE) for key in ("rows", "columns"))
    if top >= bottom or left >= right:
        raise Wrong(f"{fields.name}rows and columns are empty")
    return Region((top, bottom), (left, right))


def _check_tiles(plan: VisionPlan) -> None:
    """Tiles stand row by row and cover the stage without overlap; windows lie in the image and never go back up."""
    rows, columns = plan.grid
    if plan.stage is None:
        if plan.tiles or plan.grid != (1, 1):
            raise Wrong("there are tiles, but no stage that they are stitched to")
        return
    if len(plan.stage.shape) != 4 or plan.stage.shape[0] != 1:
        raise Wrong(f"stage.shape is {list(plan.stage.shape)}, expected one image [1, rows, columns, channels]")
    if len(plan.tiles) != rows * columns:
        raise Wrong(f"tiles has {len(plan.tiles)} entries, expected {rows} rows of {columns}")
    _, height, width, _ = plan.input.shape
    begun, windows_begin, windows_end = 0, 0, 0
    for index in range(rows):
        row = plan.row(index)
        bands = {(tile.output.rows, tile.window.rows) for tile in row}
        ends = [0, *(tile.output.columns[1] for tile in row)]
        begins = [*(tile.output.columns[0] for tile in row), plan.stage.shape[2]]
        output, window = row[0].output.rows, row[0].window.rows
        if len(bands) != 1 or ends != begins or output[0] != begun:
            raise Wrong(f"the tiles of row {index} leave a gap, or overlap")
        if window[0] < windows_begin or window[1] < windows_end:
            raise Wrong(f"the windows of row {index} go back up the image")
        if window[1] > height or any(tile.window.columns[1] > width for tile in row):
            raise Wrong(f"the windows of row {index} leave the image")
        begun, windows_begin, windows_end = output[1], *window
    if begun != plan.stage.shape[1]:
        raise Wrong(f"the tiles cover {begun} of the stage's {plan.stage.shape[1]} rows")
