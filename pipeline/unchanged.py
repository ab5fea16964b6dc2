"""What an export takes over from the bundle that it replaces: files that it would write again as they are.

A decoder's files in one format, its golden outputs among them, follow from what `Origin` holds, and edgepipe.json has
its hash beside their names. So the bundle is a cache of its own parts: no other is needed, and none can go stale.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from edgepipe.exporters.llm.recipe import DecoderRecipe, Thresholds
from edgepipe.exporters.llm.static_shape import StaticShape
from edgepipe.exporters.sources.weights import DecoderWeights
from edgepipe.pipeline.bundle import Bundle, sha256
from edgepipe.pipeline.own_wheel import package_files

# What edgepipe.json has to say of a format's files beside their names.
_FACTS = {"precision", "bytes", "export_seconds", "notes", "files"}


@dataclass(frozen=True)
class Origin:
    """All that determines what is written of a decoder, whatever the format; every value is JSON-ready.

    ``source`` identifies the weights by their content; ``recipe`` is how they are quantised; ``texts`` are hashes of
    tokenizer and configurations; ``read`` are the digests of a target's files whose features a head reads; ``tools``
    are versions; ``code`` is a hash of edgepipe's own.
    """

    source: str
    recipe: Mapping[str, Any]
    gives_features: bool
    texts: Mapping[str, str]
    read: Mapping[str, str]
    tools: Mapping[str, str]
    code: str

    @classmethod
    def of(
        cls,
        weights: DecoderWeights,
        recipe: DecoderRecipe,
        gives_features: bool,
        folder: Path,
        manifest: Mapping[str, Any],
    ) -> Origin:
        """Of a decoder whose ``folder`` holds no more than its texts; ``manifest`` tells of tools, and of a target."""
        # How the source was named does not matter, nor how far from it what is written may stray.
        quantisation = {k: v for k, v in asdict(recipe).items() if k not in ("source", "revision", "thresholds")}
        target = manifest["components"]["target"]["formats"] if weights.kind == "head" else {}
        return cls(
            source=weights.identity,
            recipe=quantisation,
            gives_features=gives_features,
            texts={path.name: sha256(path) for path in sorted(folder.iterdir())},
            read={form: entry["written_from"] for form, entry in target.items()},
            tools=manifest["tools"],
            code=code_digest(),
        )

    def digest(self, form: str, shape: StaticShape | None) -> str:
        """SHA-256 of all this with a format, and the shape that its files keep to."""
        facts = {**asdict(self), "format": form, "shape": shape and asdict(shape)}
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


@cache
def code_digest() -> str:
    """SHA-256 of edgepipe's own files: a version would hide a developer's edits, and writers call on all packages."""
    digests = {name: hashlib.sha256(content).hexdigest() for name, content in package_files().items()}
    return hashlib.sha256(json.dumps(digests, sort_keys=True).encode()).hexdigest()


def take_over(
    replaced: Bundle | None, bundle: Path, component: str, form: str, origin: Origin, shape: StaticShape
) -> dict[str, Any] | None:
    """Copy a component's files in one format into ``bundle``, if they are what would be written.

    Returns:
        What edgepipe.json says of them; None where they must be written: they are of another origin, or damaged.
    """
    formats = replaced.manifest["components"].get(component, {}).get("formats", {}) if replaced else {}
    entry: dict[str, Any] = formats.get(form, {})
    expected = origin.digest(form, shape if "widths" in entry else None)
    if replaced is None or entry.get("written_from") != expected or not entry.keys() >= _FACTS:
        return None
    for count, name in enumerate(entry["files"], 1):
        if not _copied(replaced.folder / name, bundle / name, replaced.manifest["files"][name]["sha256"]):
            for begun in entry["files"][:count]:
                (bundle / begun).unlink(missing_ok=True)
            return None
    return entry


def agreements(replaced: Bundle | None, component: str, limits: Thresholds) -> dict[str, Any]:
    """What the replaced bundle says of its component's validation; nothing if the limits were others."""
    found = replaced.manifest.get("validation", {}).get(component, {}) if replaced else {}
    return found if found.get("thresholds") == asdict(limits) else {"formats": {}}


def _copied(source: Path, destination: Path, expected: str) -> bool:
    """Copy a file and say whether the copy has the SHA-256. A link would let a writer change the bundle in use."""
    destination.parent.mkdir(parents=True, exist_ok=True)
    try:
        shutil.copyfile(source, destination)
        return sha256(destination) == expected
    except OSError:
        return False
