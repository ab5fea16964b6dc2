"""The built-in prompts: many, the same for the same seed, and held-out ones apart from the others."""

from __future__ import annotations

import re

import pytest

from edgepipe.exporters.llm.distill.prompts import LISTS, conversation, words_of


def test_a_seed_and_a_number_give_one_conversation() -> None:
    assert [conversation(3, index) for index in range(50)] == [conversation(3, index) for index in range(50)]
    assert conversation(3, 0) != conversation(4, 0)
    assert all(conversation(0, index)[-1]["role"] == "user" for index in range(200))


def test_there_are_thousands() -> None:
    assert len({str(conversation(0, index)) for index in range(5000)}) > 4000


@pytest.mark.parametrize("name", LISTS)
def test_every_list_is_split_into_two_parts(name: str) -> None:
    held_out, others = words_of(name, True), words_of(name, False)
    assert len(held_out) >= 2
    assert not set(held_out) & set(others)
    assert sorted(held_out + others) == sorted(LISTS[name])


def test_a_held_out_question_is_never_among_the_others() -> None:
    def questions(held_out: bool) -> set[str]:
        told = (conversation(0, index, held_out) for index in range(4000))
        return {next(message["content"] for message in messages if message["role"] == "user") for messages in told}

    assert not questions(True) & questions(False)


def test_held_out_topics_are_not_met_elsewhere() -> None:
    text = " ".join(str(conversation(0, index)) for index in range(4000))

    def met(held_out: bool) -> list[str]:
        return [topic for topic in words_of("topic", held_out) if re.search(rf"\b{topic}\b", text)]

    assert met(True) == []
    assert len(met(False)) > 200
