"""Which engines run a bundle's decoders: what they are called, what the bundle holds for them, what is installed."""

from __future__ import annotations

from typing import Any

from edgepipe.errors import BundleError, RecipeError
from edgepipe.lazy import load
from edgepipe.pipeline.bundle import Bundle
from edgepipe.runtimes.llm.decoder import Decoder
from edgepipe.runtimes.llm.engines import ENGINES, is_installed
from edgepipe.runtimes.llm.engines.static_widths import way_out
from edgepipe.runtimes.llm.spec import DecoderSpec


def exported_engines(component: dict[str, Any]) -> list[str]:
    """The engines that edgepipe.json has files for, the first choice first."""
    return [engine for engine in ENGINES if engine in component["formats"]]


def first_installed(component: dict[str, Any]) -> str:
    """The engine that runs a decoder if none is asked for.

    Where none is installed it is the first that the bundle has files for; loading it says what to install.
    """
    exported = exported_engines(component) or list(ENGINES)
    return next(filter(is_installed, exported), exported[0])


def files_of(bundle: Bundle, component: str, engine: str) -> dict[str, Any]:
    """What edgepipe.json says of a component's files for ``engine``.

    Raises:
        BundleError: it has none.
    """
    formats: dict[str, Any] = bundle.manifest["components"][component]["formats"]
    if engine not in formats:
        others = f"give --engine {next(iter(formats))}, or " if formats else ""
        raise BundleError(
            f"{bundle.folder}: {component} was not exported for {engine}, only for {', '.join(formats) or 'none'}: "
            f"{others}export again with --formats {','.join([*formats, engine])}"
        )
    files: dict[str, Any] = formats[engine]
    return files


def require_width(files: dict[str, Any], gamma: int, where: str) -> None:
    """See that there is a forward as wide as a round; ``files`` as of `files_of`, ``where`` they are.

    Raises:
        RecipeError: there is none.
    """
    widths = files.get("widths")
    if widths and gamma >= widths[-1]:
        listed = ", ".join(map(str, widths))
        raise RecipeError(
            f"gamma is {gamma}: a round then has {gamma + 1} tokens, and {where} has forwards of {listed}: "
            f"{way_out(widths, gamma + 1)}"
        )


def open_decoder(bundle: Bundle, component: str, engine: str, threads: int | None, scored: bool) -> Decoder:
    """Load a component into an engine.

    Raises:
        BundleError: the bundle has no such files.
        MissingExtra: the engine is not installed.
        EngineError: it refuses the file.
    """
    variant = "scored" if scored else "plain"
    model = files_of(bundle, component, engine).get(variant)
    if model is None:
        raise BundleError(f"{bundle.folder}: {component} has no {variant} graph: export the bundle again")
    spec = DecoderSpec.from_json(bundle.manifest["components"][component]["spec"])
    decoder: Decoder = load(ENGINES[engine])(bundle.path(model), spec, threads=threads, scored=scored)
    return decoder
