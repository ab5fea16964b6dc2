"""The external data file that the graphs of one decoder share."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import numpy as np

from edgepipe.errors import MissingExtra

try:
    from onnx import StringStringEntryProto, TensorProto, helper
except ImportError as missing:
    raise MissingExtra("onnx", "export") from missing

# Engines map the file: every tensor starts on a page of its own.
PAGE_BYTES = 4096


@dataclass(frozen=True)
class StoredTensor:
    """Where a tensor lies in the data file, and what it is."""

    dtype: np.dtype
    shape: tuple[int, ...]
    offset: int
    length: int

    def proto(self, name: str, location: str, shape: tuple[int, ...] | None = None) -> TensorProto:
        """An initializer over these bytes; ``shape`` gives another view of them."""
        entries = {"location": location, "offset": self.offset, "length": self.length}
        return TensorProto(
            name=name,
            data_type=helper.np_dtype_to_tensor_dtype(self.dtype),
            dims=self.shape if shape is None else shape,
            data_location=TensorProto.EXTERNAL,
            external_data=[StringStringEntryProto(key=key, value=str(value)) for key, value in entries.items()],
        )


class WeightFile:
    """Writes tensors one after another; nothing that was written stays in memory.

    Use as a context manager. ``size`` is the number of bytes written.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.size = 0

    def __enter__(self) -> WeightFile:
        self._file = self.path.open("wb")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def append(self, array: np.ndarray) -> StoredTensor:
        """Append one array as it is."""
        return self.append_rows([array])

    def append_rows(self, parts: Iterable[np.ndarray]) -> StoredTensor:
        """Append the concatenation of ``parts`` along the first axis, holding one part at a time."""
        padding = -self.size % PAGE_BYTES
        self._file.write(bytes(padding))
        offset = self.size + padding
        rows, length = 0, 0
        for part in parts:
            self._file.write(np.ascontiguousarray(part).data)
            rows += part.shape[0]
            length += part.nbytes
        self.size = offset + length
        return StoredTensor(part.dtype, (rows, *part.shape[1:]), offset, length)
