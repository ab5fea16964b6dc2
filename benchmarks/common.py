"""What the benchmarks share: the bundle, facts of the machine, Markdown tables, raw numbers."""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
from collections.abc import Iterable, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

MIB = 2**20


def arguments(description: str, bundle: str = "build/demo") -> argparse.ArgumentParser:
    """A parser with the options that every benchmark has."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bundle", type=Path, default=Path(bundle), help="what to measure (default: %(default)s)")
    parser.add_argument("--threads", type=int, help="of the engine (default: the machine's cores)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write raw numbers")
    return parser


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A Markdown table, columns padded."""
    cells = [list(header), *([str(cell) for cell in row] for row in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(header))]
    lines = ["| " + " | ".join(map(str.ljust, row, widths)) + " |" for row in cells]
    return "\n".join([lines[0], "|" + "|".join("-" * (width + 2) for width in widths) + "|", *lines[1:]])


def machine() -> dict[str, Any]:
    """Facts that a reader needs to judge the numbers."""
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "onnxruntime": installed("onnxruntime"),
    }


def installed(package: str) -> str | None:
    """Version of a package, None if it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def report(arguments: argparse.Namespace, raw: dict[str, Any]) -> None:
    """Print the machine's facts below the table, and write ``raw`` to ``--json``."""
    facts = machine()
    print("\n" + ", ".join(f"{name} {value}" for name, value in facts.items()))
    if arguments.json:
        arguments.json.write_text(json.dumps({"machine": facts, **raw}, indent=2) + "\n", encoding="utf-8")


def process_bytes(field: str) -> int:
    """A memory figure of this process from /proc/self/status: VmRSS, VmHWM, RssAnon."""
    try:
        lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    except OSError:
        raise SystemExit("/proc/self/status cannot be read: this benchmark needs Linux") from None
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field + ":"))


def prose(characters: int) -> str:
    """English technical prose that every Python carries: the topics of its `help()`, the longest first.

    Kept are the paragraphs of more than 80 characters that begin with a capital letter and end with a full stop or a
    colon (no code, no tables, no headings), each once, without line breaks, indentation and markup; the text is cut
    after ``characters``. It differs between versions of Python: `sha256` tells whether two are the same.
    """
    from pydoc_data.topics import topics

    kept = []
    for topic in sorted(topics.values(), key=len, reverse=True):
        for lines in topic.split("\n\n"):
            paragraph = " ".join(lines.split()).lstrip("*-+| ")
            if len(paragraph) > 80 and paragraph[0].isupper() and paragraph.endswith((".", ":")):
                kept.append(paragraph.replace("*", "").replace('"', "").replace("`", ""))
    # Topics quote one another.
    return "\n\n".join(dict.fromkeys(kept))[:characters]


def sha256(text: str) -> str:
    """SHA-256 of a text in UTF-8, 64 hex digits."""
    return hashlib.sha256(text.encode()).hexdigest()


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or "unknown"
    names = [line.partition(":")[2].strip() for line in lines if line.startswith(("model name", "Model"))]
    return names[0] if names else platform.machine()
