"""What a target wrote, with its most likely tokens at every step, in files of many samples."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from edgepipe.errors import EdgepipeError

# Tokens whose probabilities are kept for each written one.
TEACHER_TOKENS = 16


@dataclass(frozen=True)
class Sample:
    """One conversation.

    Attributes:
        tokens: int32 ``[S]``, prompt and answers.
        written: bool ``[S]``, which of them the target wrote; ``W`` of them.
        teacher_ids: int32 ``[W, K]``, the target's most likely tokens where it wrote, most likely first.
        teacher_probabilities: float16 ``[W, K]``, their probabilities at temperature 1, out of the whole vocabulary.
        features: float16 ``[S, hidden]``, what the target's last layer gives for every token; None unless computed.
    """

    tokens: np.ndarray
    written: np.ndarray
    teacher_ids: np.ndarray
    teacher_probabilities: np.ndarray
    features: np.ndarray | None = None


@contextmanager
def replaced(path: Path) -> Iterator[Path]:
    """Where to write what is to appear as ``path`` when it is whole; other processes may write the same meanwhile."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        yield partial
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def write_samples(path: Path, samples: Sequence[Sample]) -> None:
    """Write a file of samples, which appears under its name when it is whole."""
    with replaced(path) as partial, partial.open("wb") as file:
        np.savez(
            file,
            lengths=np.array([sample.tokens.size for sample in samples], np.int64),
            tokens=np.concatenate([sample.tokens for sample in samples]),
            written=np.concatenate([sample.written for sample in samples]),
            teacher_ids=np.concatenate([sample.teacher_ids for sample in samples]),
            teacher_probabilities=np.concatenate([sample.teacher_probabilities for sample in samples]),
        )


def read_samples(path: Path) -> list[Sample]:
    """Inverse of `write_samples`.

    Raises:
        EdgepipeError: the file is damaged.
    """
    try:
        with np.load(path) as arrays:
            lengths, tokens, written = arrays["lengths"], arrays["tokens"], arrays["written"]
            ids, probabilities = arrays["teacher_ids"], arrays["teacher_probabilities"]
    except (ValueError, KeyError, EOFError, NotImplementedError, zipfile.BadZipFile) as error:
        raise EdgepipeError(f"{path} is damaged ({error}): remove it, and it will be sampled again") from error
    ends = np.cumsum(lengths)
    written_before = np.concatenate([[0], np.cumsum(written)])
    samples = []
    for start, end in zip(ends - lengths, ends, strict=True):
        rows = slice(written_before[start], written_before[end])
        samples.append(Sample(tokens[start:end], written[start:end], ids[rows], probabilities[rows]))
    return samples
