"""What samples of `perf` tell of an engine: the kind of work that each shared object and function does."""

from __future__ import annotations

import re
import subprocess
from bisect import bisect_right
from collections import Counter
from functools import cache
from pathlib import Path

KINDS = ("matrix products", "attention", "other operators", "Python and numpy", "libc and kernel", "rest")
PRODUCTS, ATTENTION, OPERATORS, PYTHON, SYSTEM, REST = KINDS
ONNXRUNTIME = "onnxruntime"  # to be divided by its own profile

# They stand for symbols, where a library of ExecuTorch has none.
INT8_PRODUCTS, NO_FUNCTION = "function with products of int8", "code of no function"
INT8_INSTRUCTIONS = re.compile(r"\s(vpdpbusds?|vpmaddubsw|vpmaddwd|[su]dot|usdot|smmla|smlal2?)\s")

# Of a sample's shared object and symbol, the first in which both are found.
RULES = (
    ("onnxruntime_pybind11", "", ONNXRUNTIME),
    ("litert|portable_lib", r"q[a-z]+8_\w*gemm|kai_matmul|" + INT8_PRODUCTS, PRODUCTS),
    ("portable_lib", NO_FUNCTION, REST),
    ("litert", "f32_gemm|packw_gemm|expminusmax|f32_rmax", ATTENTION),  # its products of float32
    ("custom_ops_aot", "", ATTENTION),
    ("torch_cpu", "gem[mv]|blas", ATTENTION),  # called by the operator above, as is expf
    (r"libm\.", "expf", ATTENTION),
    ("litert|portable_lib|executorch_backend", "", OPERATORS),
    ("torch_cpu", "pthreadpool", OPERATORS),
    ("python|_multiarray_umath|openblas|ctypes|torch_cpu|libc10", "", PYTHON),
    (r"lib(c|m|pthread)\.|libstdc|ld-linux|\[kernel|\[vdso", "", SYSTEM),
)
ONNX_KINDS = {"MatMulNBits": PRODUCTS, "MatMul": PRODUCTS, "Gemm": PRODUCTS, "GroupQueryAttention": ATTENTION}

Samples = Counter[tuple[str, str]]


def classify(library: str, symbol: str) -> str:
    """One of `KINDS`, or `ONNXRUNTIME`."""
    for libraries, symbols, kind in RULES:
        if re.search(libraries, Path(library).name) and re.search(symbols, symbol):
            return kind
    return REST


def shares_of(samples: Samples, onnx_operators: dict[str, float]) -> dict[str, float]:
    """Shares of `KINDS`; what fell on onnxruntime is divided by the shares of its operators."""
    shares = dict.fromkeys(KINDS, 0.0)
    for (library, symbol), count in samples.items():
        kind, share = classify(library, symbol), count / samples.total()
        if kind == ONNXRUNTIME:
            for operator, part in onnx_operators.items():
                shares[ONNX_KINDS.get(operator, OPERATORS)] += share * part
        else:
            shares[kind] += share
    return shares


def read_samples(data: Path) -> Samples:
    """Samples of a file of perf's by shared object and symbol."""
    command = ["perf", "report", "--stdio", "-v", "-t", "\t", "-F", "sample,dso,sym", "--input", data]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    samples: Samples = Counter()
    for count, library, symbol in re.findall(r"^ *(\d+) *\t(.+?) *\t0x\w+ +\S+ +\[.\] (.+?) *$", printed, re.MULTILINE):
        if symbol.startswith("0x") and classify(library, symbol) == OPERATORS:
            symbol = kind_of_function(library, int(symbol, 16))
        samples[library, symbol] += int(count)
    return samples


def kind_of_function(library: str, offset: int) -> str:
    """`INT8_PRODUCTS`, `NO_FUNCTION` or "" for the code around a byte of a file: its instructions tell.

    What lies between functions is assembly of XNNPACK's, which writes products so.
    """
    shift, begins, bounds = functions_of(library)
    index = bisect_right(bounds, offset + shift)
    if index in (0, len(bounds)):
        return NO_FUNCTION
    if INT8_INSTRUCTIONS.search(code_of(library, bounds[index - 1], bounds[index])):
        return INT8_PRODUCTS
    return "" if bounds[index - 1] in begins else NO_FUNCTION


@cache
def functions_of(library: str) -> tuple[int, frozenset[int], list[int]]:
    """From the unwinding tables: where functions begin, and where they begin or end, in order.

    These are addresses. First comes what makes one of an offset in the file.
    """
    headers, frames = (_objdump(option, library) for option in ("--section-headers", "--dwarf=frames"))
    address, offset = re.findall(r" \.text +\w+ +(\w+) +\w+ +(\w+)", headers)[0]
    spans = [[int(bound, 16) for bound in span] for span in re.findall(r" pc=(\w+)\.\.(\w+)", frames)]
    begins = frozenset(begin for begin, _ in spans)
    return int(address, 16) - int(offset, 16), begins, sorted(begins.union(end for _, end in spans))


@cache
def code_of(library: str, begin: int, end: int) -> str:
    """A function in assembly."""
    return _objdump("--disassemble", f"--start-address={begin}", f"--stop-address={end}", library)


def _objdump(*command: str) -> str:
    return subprocess.run(["objdump", *command], capture_output=True, text=True, check=True).stdout
