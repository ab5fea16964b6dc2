"""Prompts as token ids: turn by turn through the chat template, from a file, from a text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from edgepipe.errors import RecipeError
from edgepipe.exporters.llm.distill.prompt_sources import ChatTurns, FilePrompts, TemplatePrompts, TextPrompts
from edgepipe.runtimes.llm.chat_template import ChatTemplate
from edgepipe.runtimes.llm.tokenizer import load_tokenizer

ROLES = ("user", "assistant", "user", "assistant", "user")
TOLD = ("Hi!", "Hello there.", "What now?", "Nothing.", "Fine, then.")


@pytest.fixture
def chat(tiny_target: Any) -> ChatTurns:
    tokenizer, template = load_tokenizer(tiny_target.folder), ChatTemplate.load(tiny_target.folder)
    return ChatTurns(tokenizer, template, tiny_target.weights.spec.eos_token_ids)


def test_turns_and_answers_together_are_the_rendered_conversation(chat: ChatTurns) -> None:
    messages = [{"role": role, "content": text} for role, text in zip(ROLES, TOLD, strict=True)]
    turns = chat.of([message for message in messages if message["role"] == "user"])
    assert len(turns) == 3
    end = chat.tokenizer.encode("<|im_end|>")
    tokens = turns[0]
    for answer, turn in zip(TOLD[1::2], turns[1:], strict=True):
        tokens = tokens + chat.tokenizer.encode(answer) + end + turn
    assert chat.template is not None
    assert tokens == chat.tokenizer.encode(chat.template.render(messages))


def test_system_messages_come_first(chat: ChatTurns) -> None:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi!"}]
    assert chat.template is not None
    assert chat.of(messages) == (chat.tokenizer.encode(chat.template.render(messages)),)


def test_without_a_chat_template_prompts_are_plain_text(chat: ChatTurns) -> None:
    plain = ChatTurns(chat.tokenizer, None, ())
    assert plain.of([{"role": "user", "content": "Hi!"}]) == (chat.tokenizer.encode("Hi!"),)


def test_built_in_prompts_are_numbered(chat: ChatTurns) -> None:
    prompts = TemplatePrompts(chat, seed=1)
    assert prompts.turns(5, False) == prompts.turns(5, False)
    assert prompts.turns(5, False) != prompts.turns(6, False)


def test_a_file_has_one_prompt_a_line(chat: ChatTurns, tmp_path: Path) -> None:
    lines = [f"What is {number}?" for number in range(30)]
    path = tmp_path / "prompts.txt"
    path.write_text("\n\n".join(lines) + "\n" + lines[0])
    prompts = FilePrompts(path, chat, seed=0)
    asked = [{str(prompts.turns(index, held_out)) for index in range(100)} for held_out in (False, True)]
    assert [len(part) for part in asked] == [27, 3]
    assert not asked[0] & asked[1]
    assert asked[0] | asked[1] == {str(chat.of([{"role": "user", "content": line}])) for line in lines}


def test_a_text_is_continued_from_the_start_of_its_passages(chat: ChatTurns, tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    path.write_text(" ".join(str(number) for number in range(1000)))
    ids = chat.tokenizer.encode(path.read_text())
    prompts = TextPrompts(path, chat.tokenizer, seed=0)
    starts: list[set[int]] = []
    for held_out in (False, True):
        turns = [prompts.turns(index, held_out)[0] for index in range(60)]
        assert all(16 <= len(turn) <= 96 for turn in turns)
        starts.append({start for turn in turns for start in range(0, len(ids), 96) if ids[start:][: len(turn)] == turn})
    assert starts[0]
    assert starts[1]
    assert not starts[0] & starts[1]


def test_too_little_is_refused(chat: ChatTurns, tmp_path: Path) -> None:
    path = tmp_path / "few.txt"
    path.write_text("One?\nTwo?")
    with pytest.raises(RecipeError, match="2 different prompts: expected at least 10"):
        FilePrompts(path, chat, seed=0)
    with pytest.raises(RecipeError, match="passages: expected at least 10"):
        TextPrompts(path, chat.tokenizer, seed=0)


def test_what_cannot_be_read_is_named(chat: ChatTurns, tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"missing\.txt cannot be read"):
        FilePrompts(tmp_path / "missing.txt", chat, seed=0)
    (tmp_path / "binary.txt").write_bytes(b"\xff\xfe")
    with pytest.raises(RecipeError, match="no text in UTF-8"):
        TextPrompts(tmp_path / "binary.txt", chat.tokenizer, seed=0)
