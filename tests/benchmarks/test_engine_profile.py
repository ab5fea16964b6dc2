"""Samples of engines, classified."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def samples(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module ``benchmarks/engine_samples.py``."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return import_module("engine_samples")


@pytest.fixture
def profile(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script ``benchmarks/engine_profile.py``."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return import_module("engine_profile")


@pytest.mark.parametrize(
    ("library", "symbol", "kind"),
    [
        ("onnxruntime_pybind11_state.cpython-311-x86_64-linux-gnu.so", "0x00000000014f90a6", "onnxruntime"),
        ("libpywrap_litert_common.so", "xnn_qd8_f32_qc8w_gemm_minmax_ukernel_1x64c4__asm", "matrix products"),
        ("libpywrap_litert_common.so", "xnn_f32_gemm_minmax_ukernel_7x32__avx512f_broadcast", "attention"),
        ("libpywrap_litert_common.so", "xnn_x32_packw_gemm_gio_ukernel_x32__scalar", "attention"),
        ("libpywrap_litert_common.so", "xnn_f32_vmul_ukernel__avx512f_u32", "other operators"),
        ("_portable_lib.cpython-311-x86_64-linux-gnu.so", "function with products of int8", "matrix products"),
        ("_portable_lib.cpython-311-x86_64-linux-gnu.so", "code of no function", "rest"),
        ("_portable_lib.cpython-311-x86_64-linux-gnu.so", "xnn_invoke_runtime", "other operators"),
        ("libcustom_ops_aot_lib.so", "torch::executor::native::update_cache_out", "attention"),
        ("libtorch_cpu.so", "mkl_blas_def_xsgemv", "attention"),
        ("libtorch_cpu.so", "at::_ops::view::call", "Python and numpy"),
        ("libpython3.13.so.1.0", "_PyEval_EvalFrameDefault", "Python and numpy"),
        ("_multiarray_umath.cpython-311-x86_64-linux-gnu.so", "simd_argmax_f32", "Python and numpy"),
        ("libm.so.6", "__expf_fma", "attention"),
        ("libm.so.6", "__sin_fma", "libc and kernel"),
        ("libc.so.6", "malloc", "libc and kernel"),
        ("[kernel.kallsyms]", "clear_page_erms", "libc and kernel"),
        ("libunheard_of.so", "gemm", "rest"),
    ],
)
def test_a_function_tells_the_kind_of_work(library: str, symbol: str, kind: str, samples: ModuleType) -> None:
    # Folders must not matter: engines are installed below one that is named for Python.
    assert samples.classify(f"/lib/python3.11/site-packages/onnxruntime_pybind11/{library}", symbol) == kind


def test_onnxruntimes_share_is_divided_as_its_operators_are(samples: ModuleType) -> None:
    counted = Counter({("onnxruntime_pybind11_state.so", "0x1"): 80, ("libpython3.11.so", "f"): 15, ("x.so", "g"): 5})
    shares = samples.shares_of(counted, {"MatMulNBits": 0.5, "GroupQueryAttention": 0.25, "Concat": 0.25})
    assert [round(shares[kind], 6) for kind in samples.KINDS] == [0.4, 0.2, 0.2, 0.15, 0.0, 0.05]


def test_a_missing_perf_is_one_line_that_tells_what_to_install(
    profile: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SystemExit, match=r"^perf and objdump not found: apt install linux-perf.*$"):
        profile.check_tools(tmp_path)


def test_samples_of_a_python_loop_are_pythons(profile: ModuleType, samples: ModuleType, tmp_path: Path) -> None:
    try:
        profile.check_tools(tmp_path)
    except SystemExit as error:
        pytest.skip(str(error))
    loop = "for i in range(5_000_000): i * i"
    subprocess.run([*profile.PERF, tmp_path / "data", sys.executable, "-c", loop], check=True, capture_output=True)
    found = samples.read_samples(tmp_path / "data")
    assert found.total() > 50
    assert samples.shares_of(found, {})[samples.PYTHON] > 0.5
