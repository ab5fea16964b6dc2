"""The job behind `edgepipe export`: a target, its draft and a vision model, into one bundle."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from reprlib import repr as shown

import edgepipe
from edgepipe.errors import RecipeError, TokenizerError, UnsupportedModel
from edgepipe.exporters.llm.recipe import DecoderRecipe
from edgepipe.exporters.sources import open_draft, open_source
from edgepipe.exporters.sources.quiet import no_logs
from edgepipe.exporters.sources.weights import DecoderWeights
from edgepipe.pipeline.bundle import Bundle
from edgepipe.pipeline.bundle_writer import write_bundle
from edgepipe.pipeline.export_decoder import export_decoder, part_of
from edgepipe.pipeline.progress import Progress, checked
from edgepipe.pipeline.recipe import Recipe
from edgepipe.runtimes.llm.chat_template import ChatTemplate
from edgepipe.runtimes.llm.tokenizer import load_tokenizer, require_same_tokenizer

TOOLS = (
    *("ai-edge-litert", "ai-edge-quantizer", "executorch", "gguf", "litert-torch", "numpy", "onnx", "onnxruntime"),
    *("optimum", "tokenizers", "torch", "transformers"),
)


@no_logs()
def export(
    recipe: Recipe | str | Path,
    destination: str | Path,
    *,
    force: bool = False,
    progress: Progress | None = None,
) -> Bundle:
    """Export to a new bundle, which appears under its name only when it is whole.

    Args:
        recipe: what to export; text or a path is the source of a target with default options.
        destination: the bundle's folder, which must not exist yet unless ``force`` is given.
        force: replace a bundle, and take over from it decoders' files that did not change.
        progress: called with the fraction done and what is at hand.

    Raises:
        RecipeError: ``recipe`` is none.
        BundleError: the destination exists or cannot be written.
        EdgepipeError: a source is not found; `UnsupportedModel`: it cannot be exported.
        TokenizerError: a tokenizer or chat template cannot be read, or draft and target have different tokenizers.
        ValidationFailed: what was exported strays from its source by more than the recipe allows; there is no bundle.
    """
    if isinstance(recipe, str | os.PathLike):
        recipe = Recipe(target=DecoderRecipe(source=os.fspath(recipe)))
    if not isinstance(recipe, Recipe):
        raise RecipeError(f"recipe is {shown(recipe)}: expected a Recipe, or the name of a language model")
    with write_bundle(destination, force) as draft:
        report = checked(progress, draft.stop_if_asked)
        sources: dict[str, DecoderWeights] = {}
        if recipe.target is not None:
            sources["target"] = open_source(recipe.target.source, recipe.target.revision)
        if recipe.draft is not None:
            sources["draft"] = open_draft(recipe.draft.source, sources["target"], recipe.draft.revision)
        has_head = any(weights.kind == "head" for weights in sources.values())
        if has_head and recipe.formats != ("onnx",):
            raise UnsupportedModel(
                f"{sources['draft'].info.name}: a head reads features that a target gives in onnx alone: "
                "export with --formats onnx, or take a draft that is a decoder"
            )
        if "tflite" in recipe.formats:
            for weights in sources.values():
                recipe.static.require_context(weights.info.name, weights.spec.context_length)
        _save_tokenizers(sources, recipe, draft.folder)
        count = len(sources) + (recipe.vision is not None)
        draft.manifest = {
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
            "edgepipe_version": edgepipe.__version__,
            "licence": sources["target"].info.licence if sources else None,
            "recipe": recipe.to_json(),
            "tools": {name: found for name in TOOLS if (found := _installed(name))},
            "components": {},
            "validation": {},
        }
        for index, (name, weights) in enumerate(sources.items()):
            share = part_of(report, index, count, name)
            gives_features = name == "target" and has_head
            export_decoder(
                *(name, weights, recipe.decoders[name], recipe.formats, recipe.static),
                *(draft, recipe.validate, share, gives_features),
            )
        if recipe.vision is not None:
            from edgepipe.pipeline.export_vision import export_vision

            export_vision(recipe.vision, draft, recipe.validate, part_of(report, count - 1, count, "vision"))
            if not sources:
                draft.manifest["licence"] = draft.manifest["components"]["vision"]["source"]["licence"]
    return Bundle.open(destination)


def _save_tokenizers(sources: dict[str, DecoderWeights], recipe: Recipe, folder: Path) -> None:
    """Write every component's tokenizer and check, before the long work, that each fits its model and the other."""
    tokenizers = {}
    for name, weights in sources.items():
        part, source = folder / name, recipe.decoders[name].source
        part.mkdir()
        try:
            weights.save_tokenizer(part)
            tokenizers[name] = load_tokenizer(part)
            ChatTemplate.load(part)
        except TokenizerError as error:  # it names files of the draft, which are about to vanish
            raise TokenizerError(f"{source}: " + str(error).replace(f"{part}{os.sep}", "")) from error
        if (found := tokenizers[name].vocab_size) > (rows := weights.spec.vocab_size):
            raise UnsupportedModel(
                f"{source}: its tokenizer has ids up to {found - 1}, the model's table {rows} rows: resize the "
                "embeddings (model.resize_token_embeddings(len(tokenizer)) of transformers), or remove the added tokens"
            )
    if "draft" in tokenizers:
        require_same_tokenizer(tokenizers["target"], tokenizers["draft"])


def _installed(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
