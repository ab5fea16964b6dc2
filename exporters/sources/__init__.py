"""Where weights come from: a Hugging Face id or folder, a GGUF file, an alias."""

from __future__ import annotations

from pathlib import Path

from edgepipe.errors import EdgepipeError, RecipeError
from edgepipe.exporters.sources.weights import DecoderWeights

# Drafts that come with edgepipe: the name to type, and the folder in exporters/drafts.
DRAFTS = {"smollm2-135m-draft": "smollm2_135m"}


def open_source(reference: str, revision: str | None = None) -> DecoderWeights:
    """Open the weights that ``reference`` names, by reading headers only.

    ``reference`` is a ``.gguf`` file, a local folder in Hugging Face's layout, an alias such as ``smollm2-135m``, or
    a hub id ``owner/model``; ``revision`` is a branch, tag or commit of a hub id.

    Raises:
        EdgepipeError: nothing is found under this name.
        RecipeError: a revision is given for something that has none.
        UnsupportedModel: what is found cannot be exported.
    """
    from edgepipe.exporters.sources.pypi import ALIASES, open_alias

    path = _path(reference)
    is_local = path.exists() or reference.startswith((".", "/", "~")) or path.suffix == ".gguf"
    if revision is not None and (is_local or reference in ALIASES):
        raise RecipeError(f"revision {revision!r} is given, but {reference} is no hub id: leave it out")
    if is_local and not path.exists():
        raise EdgepipeError(f"{reference} does not exist: expected a .gguf file, a folder or a hub id")
    if path.is_dir():
        from edgepipe.exporters.llm.draft_folder import is_draft
        from edgepipe.exporters.sources.hugging_face import HuggingFaceWeights

        if is_draft(path):
            raise _no_target(reference)
        return HuggingFaceWeights(path, path.resolve().name)
    if is_local:
        from edgepipe.exporters.sources.gguf import GgufWeights

        return GgufWeights(path)
    if reference in ALIASES:
        return open_alias(reference)
    if reference in DRAFTS:
        raise _no_target(reference)
    return _open_hub(reference, revision)


def open_draft(reference: str, target: DecoderWeights, revision: str | None = None) -> DecoderWeights:
    """Open the draft that ``reference`` names: what `open_source` opens, and draft folders over ``target``.

    Raises:
        EdgepipeError: nothing is found under this name.
        RecipeError: a revision is given for something that has none.
        UnsupportedModel: what is found cannot be exported, or is another target's draft.
    """
    from edgepipe.exporters.llm.draft_folder import is_draft, read_draft
    from edgepipe.exporters.sources.draft import DraftWeights
    from edgepipe.exporters.sources.draft_head import HeadWeights

    packaged = reference in DRAFTS
    folder = _packaged_draft(reference) if packaged else _path(reference)
    if not is_draft(folder):
        return open_source(reference, revision)
    if revision is not None:
        raise RecipeError(f"revision {revision!r} is given, but {reference} is no hub id: leave it out")
    draft = read_draft(folder)
    kind = HeadWeights if draft.kind == "head" else DraftWeights
    return kind(draft, target, reference if packaged else None)


def _packaged_draft(name: str) -> Path:
    folder = Path(__file__).parents[1] / "drafts" / DRAFTS[name]
    if not folder.is_dir():
        raise EdgepipeError(
            f"this edgepipe comes without {name}: make one with `edgepipe distill {name.removesuffix('-draft')} "
            "-o DRAFT`, and give --draft DRAFT"
        )
    return folder


def _no_target(reference: str) -> EdgepipeError:
    return EdgepipeError(f"{reference} is a draft, which has no embeddings: give it as --draft, beside --target")


def _path(reference: str) -> Path:
    try:
        return Path(reference).expanduser()
    except RuntimeError as error:
        raise EdgepipeError(f"{reference} does not exist: no such user, or one without a home folder") from error


def _open_hub(name: str, revision: str | None) -> DecoderWeights:
    from edgepipe.exporters.sources.hub import hub_folder
    from edgepipe.exporters.sources.hugging_face import HuggingFaceWeights

    folder, commit = hub_folder(name, revision)
    return HuggingFaceWeights(folder, name, commit)
