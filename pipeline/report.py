"""Making, writing and reading reports: report.json, and report.md, which is the same for people."""

from __future__ import annotations

import json
import os
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import edgepipe
from edgepipe.errors import EdgepipeError
from edgepipe.pipeline.bundle import Bundle
from edgepipe.pipeline.gates import Conditions, Gate
from edgepipe.pipeline.report_markdown import markdown
from edgepipe.pipeline.report_schema import DEFINITIONS, SCHEMA_VERSION, Report

REPORT_JSON = "report.json"
REPORT_MD = "report.md"


def new_report(
    folder: str | Path,
    bundle: Bundle,
    gates: list[Gate],
    device: dict[str, Any],
    conditions: Conditions,
    configuration: dict[str, Any],
    memory: dict[str, Any],
) -> Report:
    """A report that says nothing of decoders and images yet. ``folder``: of the bundle, as the user gave it."""
    return Report(
        schema_version=SCHEMA_VERSION,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        edgepipe_version=edgepipe.__version__,
        status="untrustworthy" if any(gate["outcome"] == "failed" for gate in gates) else "ok",
        gates=gates,
        device=device,
        conditions=conditions,
        bundle=_bundle_facts(str(folder), bundle),
        configuration=configuration,
        definitions=DEFINITIONS,
        load_ms=None,
        memory=memory,
        prompts=[],
        cost_curve=None,
    )


def _bundle_facts(folder: str, bundle: Bundle) -> dict[str, Any]:
    manifest = bundle.manifest
    return {
        "folder": folder,
        "bundle_id": manifest["bundle_id"],
        "sources": {name: component.get("source") for name, component in manifest["components"].items()},
        "files": {name: entry["sha256"] for name, entry in manifest["files"].items()},
    }


def require_writable(folder: Path) -> None:
    """Make ``folder`` and see to it that a report can be put there, before anybody waits for one.

    Raises:
        EdgepipeError: that is impossible.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
        for name in (REPORT_JSON, REPORT_MD):
            if (folder / name).is_dir():
                raise IsADirectoryError(0, f"{name} is a folder")
    except OSError as error:
        raise EdgepipeError(
            f"no report can be written to {folder} ({error.strerror}): give another folder with -o"
        ) from error


def write_report(report: Report, folder: Path) -> None:
    """Write report.json and report.md; those of an earlier run are replaced only once both are whole."""
    texts = {REPORT_JSON: json.dumps(report, ensure_ascii=False) + "\n", REPORT_MD: markdown(report)}
    partial = {name: folder / f".{name}.{os.getpid()}" for name in texts}
    try:
        for name, text in texts.items():
            with partial[name].open("w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
        for name, path in partial.items():
            os.replace(path, folder / name)
    finally:
        for path in partial.values():
            path.unlink(missing_ok=True)


def read_report(path: Path) -> Report:
    """Read report.json, also that of an earlier schema version, which lacks what is told of guesses.

    Raises:
        EdgepipeError: it is missing, no report, or of a later schema version.
    """
    try:
        found = json.loads(path.read_bytes())
    except OSError as error:
        raise EdgepipeError(f"{path}: {error.strerror}: expected a report, as `edgepipe measure` writes it") from error
    except (ValueError, RecursionError) as error:
        raise EdgepipeError(f"{path} is damaged: it is not JSON ({error}); measure again") from error
    version = found.get("schema_version") if isinstance(found, dict) else None
    if version not in range(1, SCHEMA_VERSION + 1):
        known = f"this edgepipe reads 1 to {SCHEMA_VERSION}"
        raise EdgepipeError(f"{path} has schema version {str(version)[:40]}, {known}: measure again")
    missing = sorted(Report.__required_keys__ - found.keys())
    if missing:
        raise EdgepipeError(f"{path} is damaged: it has no {missing[0]}; measure again")
    report: Report = found
    return report
