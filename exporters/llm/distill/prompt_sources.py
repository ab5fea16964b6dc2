"""Where prompts come from: the built-in templates, a file of prompts, or a text that the target continues."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol, TypeVar

from edgepipe.errors import RecipeError
from edgepipe.exporters.llm.distill.prompts import conversation
from edgepipe.runtimes.llm.chat_template import ChatTemplate
from edgepipe.runtimes.llm.tokenization.base import Tokenizer

# Of a file's prompts or passages, one in so many is held out.
HELD_OUT_SHARE = 10
# Tokens of a text that are given to the target to be continued, least and most.
PASSAGE = (16, 96)
Item = TypeVar("Item", str, list[int])

_ANSWER = "\N{OBJECT REPLACEMENT CHARACTER}"


class Prompts(Protocol):
    """Numbered prompts as token ids."""

    name: str

    def turns(self, index: int, held_out: bool) -> tuple[list[int], ...]:
        """Prompt ``index``, and what follows each answer but the last; no held-out one is among the others."""
        ...


class ChatTurns:
    """Conversations through a chat template, as token ids; plain text where a model has no template."""

    def __init__(self, tokenizer: Tokenizer, template: ChatTemplate | None, eos_ids: Sequence[int]) -> None:
        self.tokenizer = tokenizer
        self.template = template
        self.eos_ids = frozenset(eos_ids)

    def of(self, messages: Sequence[dict[str, str]]) -> tuple[list[int], ...]:
        """User turns that follow one another are asked one by one, after the model's answers."""
        first = next(index for index, message in enumerate(messages) if message["role"] == "user") + 1
        if self.template is None:
            return (self.tokenizer.encode(messages[first - 1]["content"]),)
        told = list(messages[:first])
        turns = [self.tokenizer.encode(self.template.render(told))]
        for message in messages[first:]:
            told += [{"role": "assistant", "content": _ANSWER}, message]
            following = self.tokenizer.encode(self.template.render(told).rpartition(_ANSWER)[2])
            if following and following[0] in self.eos_ids:  # the model has written it
                following = following[1:]
            turns.append(following)
        return tuple(turns)


class TemplatePrompts:
    """The built-in templates."""

    name = "built-in"

    def __init__(self, chat: ChatTurns, seed: int) -> None:
        self.chat = chat
        self.seed = seed

    def turns(self, index: int, held_out: bool) -> tuple[list[int], ...]:
        return self.chat.of(conversation(self.seed, index, held_out))


class FilePrompts:
    """A file with one prompt a line, in an order that the seed draws; starts anew when all have been asked."""

    def __init__(self, path: Path, chat: ChatTurns, seed: int) -> None:
        """Read ``path``.

        Raises:
            RecipeError: it cannot be read, or has too few prompts.
        """
        text = _read(path)
        self.name = _named(path, text)
        self.chat = chat
        lines = list(dict.fromkeys(line.strip() for line in text.splitlines() if line.strip()))
        self.parts = _parts(lines, f"{path} has {len(lines)} different prompts", seed)

    def turns(self, index: int, held_out: bool) -> tuple[list[int], ...]:
        prompts = self.parts[held_out]
        return self.chat.of([{"role": "user", "content": prompts[index % len(prompts)]}])


class TextPrompts:
    """Passages of a text, without a chat template; the target goes on from the first tokens of each."""

    def __init__(self, path: Path, tokenizer: Tokenizer, seed: int) -> None:
        """Read ``path``.

        Raises:
            RecipeError: it cannot be read, or is too short.
        """
        text = _read(path)
        self.name = _named(path, text)
        ids, longest = tokenizer.encode(text), PASSAGE[1]
        passages = [ids[start : start + longest] for start in range(0, len(ids) - PASSAGE[0], longest)]
        self.seed = seed
        self.parts = _parts(passages, f"{path} has {len(ids)} tokens, {len(passages)} passages", seed)

    def turns(self, index: int, held_out: bool) -> tuple[list[int], ...]:
        passages = self.parts[held_out]
        length = random.Random(f"passage {self.seed} {index}").randint(*PASSAGE)
        return (passages[index % len(passages)][:length],)


def _parts(items: list[Item], found: str, seed: int) -> tuple[list[Item], list[Item]]:
    """The items in an order that the seed draws: those for training, those held out."""
    held_out = len(items) // HELD_OUT_SHARE
    if not held_out:
        raise RecipeError(f"{found}: expected at least {HELD_OUT_SHARE}")
    random.Random(seed).shuffle(items)
    return items[held_out:], items[:held_out]


def _read(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except OSError as error:
        raise RecipeError(f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise RecipeError(f"{path} is no text in UTF-8: byte {error.start} is not") from error


def _named(path: Path, text: str) -> str:
    return f"{path.name} sha256:{hashlib.sha256(text.encode()).hexdigest()}"
