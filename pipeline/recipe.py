"""The recipe of an export: TOML into frozen dataclasses, and back.

    validate = true
    formats = ["onnx", "tflite"]

    [static]
    widths = [1, 5]

    [target]
    source = "smollm2-135m"
    precision = "int4"
    block_size = 32

    [target.thresholds]
    max_perplexity_ratio = 1.1

    [draft]
    source = "draft/"

    [vision]
    source = "digits"
    sram = "64K"

A value that is left out has its default; an unknown key is an error.
"""

from __future__ import annotations

import json
import tomllib
import types
import typing
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args, get_origin

from edgepipe.errors import RecipeError
from edgepipe.exporters.llm.recipe import DecoderRecipe
from edgepipe.exporters.llm.static_shape import StaticShape
from edgepipe.pipeline.vision_recipe import VisionRecipe
from edgepipe.runtimes.llm.engines import ALIASES, ENGINES

T = TypeVar("T")

FORMATS = tuple(ENGINES)


@dataclass(frozen=True)
class Recipe:
    """What goes into a bundle.

    ``target`` is the decoder to run and ``draft`` a smaller one that guesses for it; ``vision`` is a vision model,
    alone or beside them. ``validate`` compares each with its source; ``formats`` are the engines' formats to write of
    the decoders, by any name of the engine, and ``static`` the forwards that tflite has.

    Raises:
        RecipeError: a value is out of its range, or there is nothing to export.
    """

    target: DecoderRecipe | None = None
    draft: DecoderRecipe | None = None
    validate: bool = True
    formats: tuple[str, ...] = ("onnx",)
    static: StaticShape = field(default_factory=StaticShape)
    vision: VisionRecipe | None = None

    def __post_init__(self) -> None:
        if self.target is None and (self.draft is not None or self.vision is None):
            raise RecipeError("target is missing: expected a table" + ("" if self.draft else ", or one called vision"))
        object.__setattr__(self, "formats", tuple(ALIASES.get(name, name) for name in self.formats))
        for name in self.formats:
            if name not in FORMATS:
                raise RecipeError(f"formats has {name!r}: expected {', '.join(FORMATS)}")
        if not self.formats:
            raise RecipeError(f"formats is empty: expected one or more of {', '.join(FORMATS)}")
        if len(set(self.formats)) < len(self.formats):
            raise RecipeError(f"formats is {', '.join(self.formats)}: expected each once")

    @property
    def decoders(self) -> dict[str, DecoderRecipe]:
        """The recipes by component: ``target`` and ``draft``, as far as there are any."""
        parts = {"target": self.target, "draft": self.draft}
        return {name: part for name, part in parts.items() if part is not None}

    def to_json(self) -> dict[str, Any]:
        """A JSON-ready dict with every value, also those that were left to their defaults."""
        return asdict(self)


def read_recipe(path: Path) -> dict[str, Any]:
    """Read a recipe file into nested dicts, for `recipe_from` to check after other values were laid over them.

    Raises:
        RecipeError: the file is missing, or no TOML.
    """
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise RecipeError(f"cannot read the recipe {path}: {error.strerror}") from error
    except ValueError as error:  # TOMLDecodeError, UnicodeDecodeError
        raise RecipeError(f"the recipe {path} is no TOML: {error}") from error


def recipe_from(values: dict[str, Any]) -> Recipe:
    """Build a recipe from nested dicts.

    Raises:
        RecipeError: a key is unknown or missing, or a value has the wrong type or is out of range.
    """
    return _build(Recipe, values, "")


def to_toml(recipe: Recipe) -> str:
    """The recipe with all its values as TOML that `read_recipe` reads back; what is None is left out.

    So are the decoders' ``formats``, and their shapes, where there is none.
    """
    lines: list[str] = []
    values = recipe.to_json()
    if not recipe.decoders:
        del values["formats"], values["static"]
    _write_table(values, "", lines)
    return "\n".join(lines).strip() + "\n"


def _build(kind: type[T], values: dict[str, Any], prefix: str) -> T:
    """Make a dataclass of ``values``; ``prefix`` is the dotted name of the table they stand in."""
    hints = typing.get_type_hints(kind)
    for key in values:
        if key not in hints:
            close = get_close_matches(key, hints, n=1)
            hint = f"did you mean {prefix}{close[0]}?" if close else f"expected one of {', '.join(hints)}"
            raise RecipeError(f"unknown key {prefix}{key}: {hint}")
    for each in fields(kind):  # type: ignore[arg-type]
        required = each.default is each.default_factory  # both MISSING
        if required and each.name not in values:
            what = "a table" if is_dataclass(hints[each.name]) else _describe(hints[each.name])
            raise RecipeError(f"{prefix}{each.name} is missing: expected {what}")
    converted = {key: _convert(hints[key], value, prefix + key) for key, value in values.items()}
    try:
        return kind(**converted)
    except RecipeError as error:
        raise RecipeError(f"{prefix}{error}") from error


def _convert(kind: Any, value: Any, name: str) -> Any:
    """Check ``value`` against the type of the field called ``name``, and build tables and tuples."""
    options = get_args(kind) if _is_union(kind) else (kind,)
    for option in options:
        if is_dataclass(option) and isinstance(option, type) and isinstance(value, dict):
            return _build(option, value, f"{name}.")
        if get_origin(option) is tuple and isinstance(value, (list, tuple)):
            return tuple(_convert(get_args(option)[0], item, f"{name}[{index}]") for index, item in enumerate(value))
        if get_origin(option) is Literal and value in get_args(option):
            return value
        if option is float and type(value) in (int, float):
            return float(value)
        if isinstance(option, type) and type(value) is option:
            return value
    raise RecipeError(f"{name} is {value!r}: expected {_describe(kind)}")


def _is_union(kind: Any) -> bool:
    return get_origin(kind) in (typing.Union, types.UnionType)


def _describe(kind: Any) -> str:
    """A type in the words of someone who writes TOML."""
    if _is_union(kind):
        return " or ".join(_describe(option) for option in get_args(kind) if option is not types.NoneType)
    if get_origin(kind) is Literal:
        return "one of " + ", ".join(map(str, get_args(kind)))
    if get_origin(kind) is tuple:
        return "a list"
    if is_dataclass(kind):
        return "a table"
    return {str: "text in quotes", bool: "true or false", int: "a whole number", float: "a number"}[kind]


def _write_table(values: dict[str, Any], name: str, lines: list[str]) -> None:
    """Append the lines of one table: plain values first, tables in it after them."""
    if name:
        lines += ["", f"[{name}]"]
    for key, value in values.items():
        if value is not None and not isinstance(value, dict):
            lines.append(f"{key} = {_toml_value(value)}")
    for key, value in values.items():
        if isinstance(value, dict):
            _write_table(value, f"{name}.{key}" if name else key, lines)


def _toml_value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(_toml_value, value)) + "]"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)  # JSON's escapes are TOML's
    return repr(value)
