"""The target of a distillation: what it is asked, and the graph that answers."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir

from edgepipe.errors import TokenizerError
from edgepipe.exporters.llm.distill.prompt_sources import ChatTurns, FilePrompts, Prompts, TemplatePrompts, TextPrompts
from edgepipe.exporters.llm.onnx import write_onnx
from edgepipe.exporters.llm.recipe import DecoderRecipe
from edgepipe.exporters.sources.weights import DecoderWeights
from edgepipe.pipeline.bundle import sha256
from edgepipe.pipeline.distillation import Distillation
from edgepipe.pipeline.full_disk import told_if_full
from edgepipe.pipeline.partial_folder import partial_folder
from edgepipe.pipeline.progress import Progress
from edgepipe.runtimes.llm.chat_template import ChatTemplate
from edgepipe.runtimes.llm.tokenizer import load_tokenizer

# Beside the exported files: what they were exported from, and their checksums.
RECORD = "distilled_from.txt"


def opened_prompts(recipe: Distillation, weights: DecoderWeights) -> Prompts:
    """The prompts, of which the held-out ones are tried on the target's tokenizer and chat template.

    Raises:
        RecipeError: their file cannot be read, or has too few.
        TokenizerError: the target's tokenizer cannot be read, or its chat template refuses a prompt.
        BundleError: the disk with temporary files is full.
    """
    with (
        told_if_full(Path(gettempdir()), "free some, or name a folder on another disk by TMPDIR"),
        TemporaryDirectory(prefix="edgepipe-") as name,
    ):
        try:
            weights.save_tokenizer(Path(name))
            prompts = _prompts(recipe, weights, Path(name))
            for index in range(recipe.held_out):
                prompts.turns(index, True)
        except TokenizerError as error:  # it names files that are about to vanish
            raise TokenizerError(f"{recipe.target}: " + str(error).replace(f"{name}{os.sep}", "")) from error
    return prompts


def _prompts(recipe: Distillation, weights: DecoderWeights, folder: Path) -> Prompts:
    tokenizer = load_tokenizer(folder)
    if recipe.text:
        return TextPrompts(recipe.text, tokenizer, recipe.seed)
    chat = ChatTurns(tokenizer, ChatTemplate.load(folder), weights.spec.eos_token_ids)
    if recipe.prompts:
        return FilePrompts(recipe.prompts, chat, recipe.seed)
    return TemplatePrompts(chat, recipe.seed)


def exported_target(weights: DecoderWeights, recipe: Distillation, work: Path, report: Progress) -> Path:
    """The target as a device gets it, exported into ``work`` once; another's, or a damaged one, makes room."""
    folder = work / "target"
    record = folder / RECORD
    if not record.is_file() or record.read_bytes() != _record(weights, folder):
        with partial_folder(folder) as partial:
            weights.save_tokenizer(partial)
            source = DecoderRecipe(recipe.target, recipe.revision)
            write_onnx(weights, source, partial, lambda fraction, part: report(0.05 * fraction, f"export: {part}"))
            (partial / RECORD).write_bytes(_record(weights, partial))
            if folder.exists():
                shutil.rmtree(folder)
            os.rename(partial, folder)
    return folder


def _record(weights: DecoderWeights, folder: Path) -> bytes:
    names = (path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    lines = (f"{sha256(folder / name)}  {name}" for name in sorted(names) if name != RECORD)
    return "\n".join((weights.identity, *lines, "")).encode()
