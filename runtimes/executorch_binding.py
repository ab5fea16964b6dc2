"""ExecuTorch's Python binding, which runs images and text."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from weakref import WeakSet

from edgepipe.errors import BundleError, EngineError, MissingExtra
from edgepipe.runtimes.vision.engine import first_line
from edgepipe.runtimes.vision.engines.quiet import quiet

# ExecuTorch has one pool of threads, and ends the process if that changes under a loaded method.
_pool_users: WeakSet[Any] = WeakSet()


def load_binding() -> tuple[Any, Any]:
    """torch, whose tensors go in and out, and the binding.

    ``executorch.runtime``, around the binding, would load the exporter too: three more seconds and 130 MB.

    Raises:
        MissingExtra: executorch, or torch, is not installed.
        EngineError: it is, and does not load.
    """
    with _one_openmp_thread():
        try:
            import torch  # noqa: TID251
            from executorch.extension.pybindings import _portable_lib
        except ModuleNotFoundError as error:
            raise MissingExtra(error.name or "executorch", "executorch") from error
        except (ImportError, OSError) as error:  # built for another torch, say
            raise EngineError(
                f"executorch does not load ({first_line(error)}): pip install --force-reinstall 'edgepipe[executorch]'"
            ) from error
    return torch, _portable_lib


@contextmanager
def _one_openmp_thread() -> Iterator[None]:
    """Let the BLAS that is loaded meanwhile stay on the thread that calls it.

    ExecuTorch's own threads call torch's BLAS, for attention. It would start OpenMP's for each of the many small
    products, which take the cores from those that wait: 2 to 5 tokens then take three times as long. OpenMP reads
    this once, when torch is loaded. Where it was loaded before, its threads stay, and some products are summed in
    another order: in SmolLM2's attention 5 to 11 tokens then differ in the last digits, and where activations are
    quantised to int8 a logit may differ by 0.4.
    """
    if os.environ.get("OMP_NUM_THREADS"):
        yield
        return
    os.environ["OMP_NUM_THREADS"] = "1"
    try:
        yield
    finally:
        del os.environ["OMP_NUM_THREADS"]


def use_threads(user: object, binding: Any, threads: int | None) -> None:
    """Give ``user``, an engine, a pool of ``threads``; by default ExecuTorch chooses: the fast cores.

    Raises:
        EngineError: another engine in this process has another number of threads.
    """
    with quiet():
        found = binding._threadpool_get_thread_count()
        if threads is not None and threads != found:
            if _pool_users:
                raise EngineError(
                    f"{threads} threads for ExecuTorch, which runs with {found} in this process: ask for {found}"
                )
            binding._unsafe_reset_threadpool(threads)
    _pool_users.add(user)


def open_program(binding: Any, path: Path) -> Any:
    """The program in a file; its methods are loaded one by one.

    The structure of the file is checked first, weights aside: on damaged offsets ExecuTorch ends the process.

    Raises:
        BundleError: the file is none.
        RuntimeError: ExecuTorch refuses it.
    """
    with path.open("rb") as file:
        if file.read(6)[4:] != b"ET":  # ExecuTorch ends the process on other files
            raise BundleError(f"{path} is no ExecuTorch program: copy or export the bundle again")
    return binding._load_program(str(path), program_verification=binding.Verification.InternalConsistency)
