"""`edgepipe export`: parse, call `edgepipe.pipeline.export`, print."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from edgepipe.errors import RecipeError

if TYPE_CHECKING:
    from edgepipe.pipeline.bundle import Bundle

PRECISIONS = ["auto", "fp32", "int8", "int4"]


@click.command("export", short_help="Turn a language or vision model into a bundle for a device.")
@click.option("--target", metavar="MODEL", help="Model to run: hub id, folder, .gguf file, or smollm2-135m.")
@click.option("--draft", metavar="DRAFT", help="Draft that guesses ahead for it, or a smaller MODEL.")
@click.option("--output", "-o", metavar="BUNDLE", type=click.Path(path_type=Path), help="Folder to write.")
@click.option("--force", is_flag=True, help="Replace BUNDLE if it is one; keeps what is unchanged.")
@click.option("--revision", metavar="COMMIT", help="Branch, tag or commit of the target's hub id.")
@click.option("--draft-revision", metavar="COMMIT", help="The same of the draft's.")
@click.option("--precision", type=click.Choice(PRECISIONS), help="Of the layers; auto keeps GGUF blocks.  [auto]")
@click.option("--draft-precision", type=click.Choice(PRECISIONS), help="Of the draft's.  [as --precision]")
@click.option("--head-precision", type=click.Choice(PRECISIONS), help="Of embeddings and head.  [auto]")
@click.option("--block-size", type=int, help="Weights that share a scale: 32, 64 or 128.  [32]")
@click.option("--symmetric/--asymmetric", default=None, help="Whether zero points are fixed.  [asymmetric]")
@click.option("--vision", metavar="MODEL", help="Vision model: digits, a .tflite, .onnx or .pt2 file, mobilenet_v2 ...")
@click.option("--weights", metavar="FILE", help="State dict of a vision model that is built in or a module.py:factory.")
@click.option("--calibration", metavar="FOLDER", help="Images, or .npy files, that it is quantised with.")
@click.option("--labels", metavar="FILE", help="Names of its classes, one on each line.")
@click.option("--sram", metavar="SIZE", help="SRAM that it must fit into, as in 192K.  [least for 10 % more work]")
@click.option("--flash", metavar="SIZE", help="Flash for weights and requantisation tables, as in 1M.")
@click.option("--board", help="A board that has so much, as in nrf52840, and that firmware is for.")
@click.option("--mode", type=click.Choice(["streamed", "resident"]), help="Is the image in SRAM?  [streamed: no]")
@click.option(
    "--formats", metavar="NAME,...", help="tflite, onnx, executorch, firmware.  [onnx; of vision tflite,onnx]"
)
@click.option("--widths", metavar="N,...", help="Text in tflite: forwards of 1 and of gamma + 1 tokens.  [1,5]")
@click.option("--chunk-width", type=int, help="There, prompt tokens of a forward.  [64]")
@click.option("--no-validate", is_flag=True, help="Do not compare with the source.")
@click.option("--recipe", "recipe_file", metavar="FILE", type=click.Path(path_type=Path), help="TOML with all of this.")
@click.option("--dry-run", is_flag=True, help="Print the recipe that these options make, and stop.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(
    target: str | None,
    draft: str | None,
    output: Path | None,
    force: bool,
    revision: str | None,
    draft_revision: str | None,
    precision: str | None,
    draft_precision: str | None,
    head_precision: str | None,
    block_size: int | None,
    symmetric: bool | None,
    vision: str | None,
    weights: str | None,
    calibration: str | None,
    labels: str | None,
    sram: str | None,
    flash: str | None,
    board: str | None,
    mode: str | None,
    formats: str | None,
    widths: str | None,
    chunk_width: int | None,
    no_validate: bool,
    recipe_file: Path | None,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Export a language model, a draft that guesses for it, a vision model, or all of them, into the folder BUNDLE.

    Options are laid over the recipe file; those of the target apply to the draft too. The bundle
    appears when it is whole: an export that fails, is killed, or does not pass validation (exit code 3) leaves none.

    A DRAFT guesses ahead for the target: a folder that edgepipe distill wrote, smollm2-135m-draft, or any smaller MODEL
    with the same tokenizer.

    Progress is shown on a terminal only. Formats are those of the language models and of the vision model; executorch
    takes a few minutes to lower.

    A .npy file in the calibration FOLDER holds one image of the model's size, or several: uint8 pixels, or
    floating-point real values, as pixels are normalised to (0 to 1 without mean and std).

    \b
    edgepipe export --target smollm2-135m --draft smollm2-135m-draft -o smollm2
    edgepipe export --target Qwen/Qwen3-4B --draft Qwen/Qwen3-0.6B --precision int4 -o qwen3
    edgepipe export --target smollm2-135m --formats onnx,tflite --widths 1,5,9 -o smollm2
    edgepipe export --vision digits --sram 64K -o digits
    edgepipe export --vision person.tflite --formats tflite,firmware --board netduinoplus2 -o person
    """
    from edgepipe.pipeline.recipe import read_recipe, recipe_from, to_toml

    values = read_recipe(recipe_file) if recipe_file else {}
    both = {
        "precision": precision,
        "head_precision": head_precision,
        "block_size": block_size,
        "symmetric": symmetric,
    }
    image_options = {
        "weights": weights,
        "calibration": calibration,
        "labels": labels,
        "sram": sram,
        "flash": flash,
        "board": board,
        "mode": mode,
    }
    names = [name.strip() for name in formats.split(",")] if formats is not None else None
    static = _static(widths, chunk_width)
    if vision is not None or "vision" in values:
        _lay_over(values, "vision", {"source": vision, "formats": names, **image_options})
    elif given := [f"--{name}" for name, value in image_options.items() if value is not None]:
        raise click.UsageError(f"{given[0]} is an option of a vision model, but no --vision MODEL is given")
    if target is not None or "target" in values or "vision" not in values:
        _lay_over(values, "target", {"source": target, "revision": revision, **both})
        _lay_over(values, "static", static)
        if names is not None:  # firmware is of vision alone
            values["formats"] = [name for name in names if name != "firmware" or "vision" not in values] or ["onnx"]
    elif given := [f"--{name.replace('_', '-')}" for name, value in {"revision": revision, **both}.items() if value]:
        raise click.UsageError(f"{given[0]} is an option of a language model, but no --target MODEL is given")
    draft_values = {"source": draft, "revision": draft_revision, **both}
    if draft_precision is not None:
        draft_values["precision"] = draft_precision
    if "draft" in values or draft is not None:
        _lay_over(values, "draft", draft_values)
    elif draft_precision is not None or draft_revision is not None:
        raise click.UsageError("options of the draft are given, but no --draft DRAFT")
    if no_validate:
        values["validate"] = False
    if "target" not in values and "vision" not in values:
        raise click.UsageError("nothing to export: give --target MODEL, --vision MODEL, or a --recipe with one of them")
    recipe = recipe_from(values)
    if static and "tflite" not in recipe.formats:
        raise click.UsageError("--widths and --chunk-width are of the format tflite: add it to --formats")
    if dry_run:
        click.echo(json.dumps(recipe.to_json()) if as_json else to_toml(recipe), nl=as_json)
        return
    if output is None:
        raise click.UsageError("no place to write to: give --output BUNDLE")

    from edgepipe import export
    from edgepipe.pipeline.progress import progress

    with progress(f"export {output}") as report:
        bundle = export(recipe, output, force=force, progress=report)
    facts = _facts(bundle)
    click.echo(json.dumps(facts) if as_json else _summary(facts))


def _parts(precision: dict[str, str]) -> str:
    return ", ".join(f"{part} {bits}" for part, bits in precision.items())


def _static(widths: str | None, chunk_width: int | None) -> dict[str, Any]:
    """The recipe's values of the two options, as far as they are given; what is wrong with one is told by its name."""
    from edgepipe.exporters.llm.static_shape import StaticShape

    values: dict[str, Any] = {}
    try:
        if chunk_width is not None:
            values["chunk"] = StaticShape(chunk=chunk_width).chunk
        if widths is not None:
            values["widths"] = StaticShape(widths=tuple(int(part) for part in widths.split(","))).widths
    except RecipeError as error:
        key, _, told = str(error).partition(" ")
        raise click.UsageError(f"{'--widths' if key == 'widths' else '--chunk-width'} {told}") from None
    except ValueError:
        raise click.UsageError(f"--widths is {widths!r}: expected whole numbers as in 1,5,9") from None
    return values


def _lay_over(values: dict[str, Any], table: str, options: dict[str, Any]) -> None:
    """Put the options that were given into a table of the recipe."""
    given = {key: value for key, value in options.items() if value is not None}
    if given and isinstance(values.setdefault(table, {}), dict):
        values[table] |= given


_TOLD = ("kind", "source", "precision", "input", "grid", "memory", "formats", "export")


def _facts(bundle: Bundle) -> dict[str, Any]:
    """What there is to say of a finished export, JSON-ready."""
    manifest = bundle.manifest
    return {
        "bundle": str(bundle.folder),
        "bundle_id": manifest["bundle_id"],
        "bytes": sum(entry["bytes"] for entry in manifest["files"].values()),
        "components": {
            name: {key: component[key] for key in _TOLD if key in component}
            for name, component in manifest["components"].items()
        },
        "validation": manifest["validation"],
        "board": (manifest["recipe"].get("vision") or {}).get("board"),
    }


def _summary(facts: dict[str, Any]) -> str:
    """The same for a person."""
    from edgepipe.devices.boards import find_board
    from edgepipe.pipeline.model_card import board_commands, figures, in_words, shape_of, tflite_micro_arenas

    lines = [f"{facts['bundle']}: {facts['bytes'] / 1e6:.1f} MB, id {facts['bundle_id']}"]
    for name, component in facts["components"].items():
        if component["kind"] == "vision":
            what, source = shape_of(component), "the whole model in reference kernels"
        else:
            what = _parts(component["precision"])
            source = "its source in float32"
        lines.append(f"{name}: {component['source']['name']}, {what}")
        if component["kind"] == "vision":
            lines.append(f"  {tflite_micro_arenas(component['memory']['tflite_micro'])}")
        lines += [f"  {note}" for note in component["export"]["notes"]]
        result = facts["validation"].get(name)
        if component["kind"] == "vision":
            lines += [f"  against {source}: {figures(result)}"] if result else []
        else:
            for form, files in component["formats"].items():
                bits = "" if files["precision"] == component["precision"] else f", {_parts(files['precision'])}"
                found = f"; against {source}: {in_words(result['formats'][form]['plain'])}" if result else ""
                taken_over = form in component["export"]["taken_over"]
                how = ", unchanged and taken over" if taken_over else f" in {files['export_seconds']:.1f} s"
                lines.append(f"  {form}: {files['bytes'] / 1e6:.1f} MB{how}{bits}{found}")
        export = component["export"]
        lines.append(f"  took {export['seconds']:.1f} s, peak memory {export['peak_rss_bytes'] / 2**30:.2f} GiB")
    dashes = "-- " if facts["bundle"].startswith("-") else ""
    place = f"{dashes}{shlex.quote(facts['bundle'])}"
    formats = facts["components"].get("vision", {}).get("formats", {})
    if list(facts["components"]) != ["vision"]:
        hints = [f"edgepipe run {place} Hello"]
    else:
        hints = [f"edgepipe run --image photo.jpg {place}"] if set(formats) != {"firmware"} else []
    if "firmware" in formats:
        hints += board_commands(place, find_board(facts["board"]))
    return "\n".join(lines + [f"try: {hint}" for hint in hints])
