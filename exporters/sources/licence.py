"""Licences as SPDX identifiers, from the names that model hubs use."""

from __future__ import annotations

from pathlib import Path

# The hub writes SPDX identifiers in lower case; what is not an open licence has names of its own.
_SPDX = {
    identifier.lower(): identifier
    for identifier in (
        "AFL-3.0",
        "AGPL-3.0",
        "Apache-2.0",
        "Artistic-2.0",
        "BSD-2-Clause",
        "BSD-3-Clause",
        "CC0-1.0",
        "CC-BY-3.0",
        "CC-BY-4.0",
        "CC-BY-NC-4.0",
        "CC-BY-NC-SA-4.0",
        "CC-BY-SA-3.0",
        "CC-BY-SA-4.0",
        "GPL-2.0",
        "GPL-3.0",
        "LGPL-3.0",
        "MIT",
        "MPL-2.0",
        "Unlicense",
    )
}


def spdx(name: object) -> str | None:
    """The SPDX identifier of a hub's licence name: Apache-2.0 for apache-2.0, LicenseRef-llama3.2 for llama3.2."""
    if not isinstance(name, str) or not name.strip():
        return None
    known = _SPDX.get(name.strip().lower())
    return known or "LicenseRef-" + "".join(c if c.isalnum() or c in ".-" else "-" for c in name.strip())


def model_card_licence(card: Path) -> str | None:
    """The licence that the front matter of a model card states, None without card or licence."""
    from huggingface_hub import metadata_load

    if not card.is_file():
        return None
    try:
        fields = metadata_load(card) or {}
    except Exception:  # whatever is wrong with a README, it must not stop an export
        return None
    licence = spdx(fields.get("license"))
    if licence == "LicenseRef-other":
        return spdx(fields.get("license_name")) or licence
    return licence
