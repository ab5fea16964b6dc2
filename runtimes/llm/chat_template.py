"""Chat templates: a conversation as the text that a model was trained to continue."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from edgepipe.errors import TokenizerError


class ChatTemplate:
    """A Jinja template of Hugging Face, with the environment that transformers gives it. It runs in a sandbox."""

    def __init__(self, source: str, special_tokens: Mapping[str, str], origin: str = "chat template") -> None:
        """Compile a template.

        `special_tokens` are variables of the template ("bos_token": "<s>"); `origin` is what errors name, a path.

        Raises `TokenizerError` for a template that does not parse.
        """
        self._origin = origin
        self._special_tokens = dict(special_tokens)
        try:
            self._template = _environment().from_string(source)
        except jinja2.TemplateSyntaxError as error:
            raise TokenizerError(f"{origin}: the chat template is damaged at line {error.lineno}: {error}") from None

    @classmethod
    def load(cls, folder: Path) -> ChatTemplate | None:
        """Read `chat_template.jinja`, else the (default) "chat_template" of `tokenizer_config.json`.

        None where there is neither: a base model, not made for chats. Raises `TokenizerError` naming a damaged file.
        """
        config_path = Path(folder) / "tokenizer_config.json"
        config = _read_config(config_path)
        special_tokens = {
            name: token["content"] if isinstance(token, dict) else token
            for name, token in config.items()
            if name.endswith("_token") and (isinstance(token, str) or (isinstance(token, dict) and "content" in token))
        }
        path = Path(folder) / "chat_template.jinja"
        if path.is_file():
            return cls(_read_text(path), special_tokens, str(path))
        source = config.get("chat_template")
        if isinstance(source, list):
            source = _default_of(source, config_path)
        if source is None:
            return None
        if not isinstance(source, str):
            raise TokenizerError(f"{config_path}: chat_template is of type {type(source).__name__}: expected a text")
        return cls(source, special_tokens, str(config_path))

    def render(self, messages: Sequence[Mapping[str, Any]], add_generation_prompt: bool = True) -> str:
        """The conversation as text, special tokens spelt out (encode it without adding any).

        `messages` are `{"role": "system" | "user" | "assistant", "content": text}`; `add_generation_prompt` ends the
        text where the assistant's answer begins. Raises `TokenizerError` with what the template says of messages that
        it refuses.
        """
        variables = {**self._special_tokens, "tools": None, "documents": None}
        try:
            return self._template.render(variables, messages=messages, add_generation_prompt=add_generation_prompt)
        except Exception as error:  # a template is a program of others: it can raise anything
            said = " ".join(str(error).split())
            raise TokenizerError(f"{self._origin}: the chat template refuses these messages: {said}") from None


def _read_text(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except OSError as error:
        raise TokenizerError(f"{path} cannot be read ({error.strerror})") from None
    except UnicodeDecodeError as error:
        raise TokenizerError(f"{path} is damaged: no UTF-8 at byte {error.start}; copy it again") from None


def _read_config(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        config = json.loads(_read_text(path))
    except (ValueError, RecursionError) as error:
        raise TokenizerError(f"{path} is damaged: no JSON ({error}); copy it again") from None
    if not isinstance(config, dict):
        raise TokenizerError(f"{path} is damaged: expected a JSON object; copy it again")
    return config


def _default_of(templates: list[Any], path: Path) -> str:
    """The template named "default" of a list of `{"name": ..., "template": ...}`."""
    named = {entry.get("name"): entry.get("template") for entry in templates if isinstance(entry, dict)}
    default = named.get("default")
    if not isinstance(default, str):
        names = ", ".join(map(str, named)) or "none"
        raise TokenizerError(f'{path}: no chat template is named "default" (found: {names})')
    return default


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", _Generation]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda format: datetime.now().strftime(format)
    return environment


class _Generation(Extension):
    """`{% generation %}` marks what the assistant said, for training; here it is only its contents."""

    tags = {"generation"}  # noqa: RUF012 (Jinja wants a set)

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Jinja's own `tojson` escapes HTML and all that is not ASCII."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)
