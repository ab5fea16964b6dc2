"""The flags that `run` and `measure` share: how text is decoded."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from edgepipe.runtimes.llm.drafters import DRAFTERS
from edgepipe.runtimes.llm.engines import ALIASES, ENGINES
from edgepipe.runtimes.llm.kv_policies import POLICIES
from edgepipe.runtimes.vision.engines import ENGINES as VISION_ENGINES

if TYPE_CHECKING:
    from edgepipe.pipeline.bundle import Bundle
    from edgepipe.pipeline.decode_options import DecodeOptions


class NumberOrAuto(click.ParamType):
    """A number of 1 or more, or ``auto``; ``what`` is counted."""

    name = "N|auto"

    def __init__(self, what: str) -> None:
        self.what = what

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int | str:
        """The number, or ``auto`` as it is."""
        if value == "auto":
            return "auto"
        try:
            number = int(value)
        except ValueError:
            number = 0
        if number < 1:
            self.fail(f"{value!r} is no number of {self.what}: expected 1 or more, or auto", param, ctx)
        return number


# The one of most tokens per second, as measured; measured in turns.
AUTO, ALL = "auto", "all"


def engine_flag(*more: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """``--engine``; ``more`` than one engine's name that is a value."""
    about = {AUTO: "auto: for text, that of most tokens per second, measured once", ALL: "all: for text, in turns"}
    return click.option(
        "--engine",
        type=click.Choice([*more, *sorted({*ENGINES, *ALIASES, *VISION_ENGINES})]),
        help="The first that is there: for text of onnx, tflite, executorch; for images of tflite (or litert), onnx, "
        f"executorch. {'; '.join(about[name] for name in more)}.",
    )


_FLAGS = (
    click.option(
        "--threads",
        type=NumberOrAuto("threads"),
        help="Threads of the engine; auto: of text, times a few settings once, and takes the fastest cores.  "
        "[default: all cores]",
    ),
    click.option("--chunk", type=click.IntRange(min=1), default=256, show_default=True, help="Prompt tokens at once."),
    click.option(
        "--drafter",
        metavar="NAME[,NAME]",
        default="auto",
        show_default=True,
        help=f"Who guesses ahead, in the order they are asked: {', '.join(DRAFTERS)}, or none; auto: lookup, then the "
        "bundle's draft model if it has one.",
    ),
    click.option(
        "--gamma",
        type=NumberOrAuto("guesses"),
        default="auto",
        show_default=True,
        help="Most guesses per round; auto: what brings the most tokens per second, 0 included.",
    ),
    click.option("--policy", type=click.Choice(list(POLICIES)), default="full", show_default=True, help="KV eviction."),
    click.option(
        "--budget",
        help="KV that --policy keeps: tokens (512), share of the text (20%), or memory (64MiB). "
        "Up to --chunk tokens more are held until the next eviction.",
    ),
    click.option("--recent", type=click.IntRange(min=1), help="h2o: newest tokens kept.  [default: half the budget]"),
    click.option("--summed", is_flag=True, help="h2o: the paper's plain sum of scores, not per query that saw them."),
    click.option(
        "--sinks", type=click.IntRange(min=0), default=4, show_default=True, help="window: first tokens kept."
    ),
    click.option(
        "--draft-policy",
        type=click.Choice(list(POLICIES)),
        help="KV eviction of the draft model (default: full, or window beside a --policy that evicts); of sparse: "
        "window of 512.",
    ),
    click.option("--draft-budget", help="KV budget of --draft-policy."),
    click.option("--temperature", type=float, default=0.0, show_default=True, help="0 is greedy."),
    click.option("--top-k", type=int, default=0, show_default=True, help="0 keeps all; of an image, prints 5."),
    click.option("--top-p", type=float, default=1.0, show_default=True),
    click.option("--min-p", type=float, default=0.0, show_default=True),
    click.option("--repetition-penalty", type=float, default=1.0, show_default=True),
    click.option("--seed", type=int, help="Of the draws."),
)


# Names of those that are of text alone.
TEXT_FLAGS = frozenset(
    (
        *("chunk", "drafter", "gamma", "policy", "budget", "recent", "summed", "sinks", "draft_policy", "draft_budget"),
        *("temperature", "top_p", "min_p", "repetition_penalty", "seed"),
    )
)


def decode_flags(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the flags to a click command."""
    for flag in reversed(_FLAGS):
        command = flag(command)
    return command


def decode_options(flags: dict[str, Any], bundle: Bundle) -> DecodeOptions:
    """`DecodeOptions` from the flags' values.

    Raises:
        RecipeError: a value is out of range, or two do not go together.
    """
    from edgepipe.pipeline.decode_options import CacheOptions, DecodeOptions
    from edgepipe.runtimes.llm.sampling import SamplingParams

    if flags["draft_budget"] and not flags["draft_policy"]:
        raise click.UsageError("--draft-budget needs a --draft-policy")
    drafter = flags["drafter"]
    if drafter == "auto":
        drafter = "lookup,model" if "draft" in bundle.manifest["components"] else "lookup"
    engine, threads = flags["engine"], flags["threads"]
    sampling = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty", "seed")
    options = DecodeOptions(
        engine=None if engine in (None, AUTO, ALL) or _is_of_images(engine, bundle) else engine,
        threads=None if threads == "auto" else threads,
        chunk=flags["chunk"],
        drafter=drafter,
        gamma=flags["gamma"],
        cache=CacheOptions(
            flags["policy"], flags["budget"], flags["recent"], normalise=not flags["summed"], sinks=flags["sinks"]
        ),
        draft_cache=CacheOptions(flags["draft_policy"], flags["draft_budget"]) if flags["draft_policy"] else None,
        sampling=SamplingParams(**{name: flags[name] for name in sampling}),
    )
    if engine == AUTO and _has_text(bundle):
        from edgepipe.pipeline.engine_choice import choose_engine

        options = replace(options, engine=choose_engine(bundle, options, tell))
    if threads == "auto":
        from edgepipe.pipeline.core_choice import choose_cores
        from edgepipe.pipeline.decoder_engines import first_installed

        chosen = options.engine or first_installed(bundle.manifest["components"]["target"])
        options = replace(options, threads=choose_cores(bundle, chosen, tell).threads)
    return options


def image_engine(engine: str | None, bundle: Bundle) -> str | None:
    """The value of ``--engine`` where an image is run; None for the first that is there.

    Beside a language model, an engine that the vision model has no files for is meant for that one.
    """
    from edgepipe.pipeline.vision_session import ENGINE_OF, vision_component

    if engine in (None, AUTO, ALL):
        return None
    name = ENGINE_OF.get(engine, engine)
    of_text = _has_text(bundle) and name not in (ENGINE_OF.get(form) for form in vision_component(bundle)["formats"])
    return None if of_text else name


def _has_text(bundle: Bundle) -> bool:
    return "target" in bundle.manifest["components"]


def _is_of_images(engine: str, bundle: Bundle) -> bool:
    """Whether a language model has no files for it and a vision model stands beside."""
    components = bundle.manifest["components"]
    if not {"target", "vision"} <= components.keys():
        return False
    return ALIASES.get(engine, engine) not in components["target"]["formats"]


def tell(step: str) -> None:
    """A line on stderr for a user who waits at a terminal."""
    if sys.stderr.isatty():
        click.echo(step, err=True)


def image_threads(threads: int | str | None) -> int | None:
    """The value of ``--threads`` where an image is run: a number, or None for all cores.

    Raises:
        click.UsageError: it is ``auto``, which times a decoder.
    """
    if isinstance(threads, str):
        raise click.UsageError("--threads auto times a language model: of images give a number, or leave it out")
    return threads
