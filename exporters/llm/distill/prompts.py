"""Chat prompts to sample a target on, put together from templates and words; some words are held out for evaluation."""

from __future__ import annotations

import random
import re
import zlib
from collections.abc import Sequence
from functools import cache

from edgepipe.exporters.llm.distill import prompt_words as words

# One word in so many of each list, and no fewer than two, are only met in held-out prompts, which use no others.
HELD_OUT_SHARE = 12

LISTS: dict[str, Sequence[str]] = {
    "topic": words.TOPICS,
    "place": words.PLACES,
    "character": words.CHARACTERS,
    "object": words.OBJECTS,
    "profession": words.PROFESSIONS,
    "product": words.PRODUCTS,
    "language": words.LANGUAGES,
    "program": words.PROGRAMS,
    "event": words.EVENTS,
    "sentence": words.SENTENCES,
    "passage": words.PASSAGES,
    "translation": words.TRANSLATIONS,
    "phrase": words.PHRASES,
}

# Kind of prompt -> (how often, templates). {a number from-to} is drawn.
TEMPLATES: dict[str, tuple[int, Sequence[str]]] = {
    "question": (22, (
        "What is {topic}?", "What do you know about {topic}?", "Why is {topic} important?", "Tell me about {topic}.",
        "How does {topic} affect our lives?", "What are the main facts about {topic}?",
        "Why do people care about {topic}?",
        "I want to learn about {topic}. Where should I start?", "What is the history of {topic}?",
        "What should I know about {topic} before I start?", "Is it true that {topic} matters more today than ever?",
        "What are common misconceptions about {topic}?", "What makes {topic} interesting?",
        "What is special about {place}?",
        "What is the best time to visit {place}?", "What does {profession} do all day?",
        "How do I become {profession}?",
        "What is the capital of {place}, and what is it known for?",
        "What is the difference between {topic} and {topic}?",
        "Can you help me understand {topic}?", "Who invented {topic}, or how did it begin?",
        "hi, quick question about {topic}",
    )),
    "explanation": (16, (
        "Explain {topic}.", "Explain {topic} in simple terms.", "Explain {topic} to a five year old.",
        "Explain {topic} in two sentences.", "Explain how {topic} works, step by step.",
        "Describe {topic} in one paragraph.",
        "Give me a short introduction to {topic}.", "Explain {topic} with an example.",
        "Teach me the basics of {topic}.",
        "Explain to {profession} why {topic} matters.", "Summarize what is known about {topic}.",
        "Define {topic} briefly.",
        "How would you explain {topic} to someone who has never heard of it?", "Explain the pros and cons of {topic}.",
        "Compare {topic} and {topic}.", "How is {topic} related to {topic}?", "Write a short lesson about {topic}.",
    )),
    "list": (13, (
        "List {3-8} facts about {topic}.", "Give me {3-10} tips about {topic}.", "What are {3-6} benefits of {topic}?",
        "Give me {3-8} ideas for a project about {topic}.", "List {3-7} things to do in {place}.",
        "What do I need to pack for a trip to {place}?", "Suggest {3-8} names for {product}.",
        "List the steps to get started with {topic}.",
        "Give me a shopping list for a dinner about {topic}.", "What are {3-5} questions to ask {profession}?",
        "Write {3-6} bullet points about {topic}.", "List {3-6} advantages and disadvantages of {topic}.",
        "Make a weekly plan for {topic}.", "Give me {3-6} examples of {topic}.",
        "List {3-8} words related to {topic}.",
    )),
    "story": (11, (
        "Write a short story about {character} and {object}.", "Tell me a story about {character} in {place}.",
        "Write a story that begins in {place} with {object}.", "Write a bedtime story about {character}.",
        "Write a poem about {topic}.", "Write a haiku about {topic}.",
        "Write a dialogue between {character} and {character}.",
        "Continue this story: {character} walked into {place} and found {object}.",
        "Write a funny story about {topic}.",
        "Write the first paragraph of a novel set in {place}.", "Describe {place} at night.",
        "Write a song about {place}.",
        "Write a limerick about {character}.", "Invent a legend about {object}.",
        "Write a letter from {character} to {character}.",
    )),
    "code": (11, (
        "Write a {language} program that {program}.", "Write a function in {language} that {program}.",
        "How do I write code that {program} in {language}?", "Show me {language} code that {program}, with comments.",
        "Write a Python function that {program}.", "Write a Python function that {program} and explain it.",
        "I need a script that {program}. Use {language}.", "Explain step by step a {language} program that {program}.",
        "What is a variable in {language}?", "Explain loops in {language} with an example.",
        "What is {language} used for?",
        "Write tests for a function that {program}.",
    )),
    "mail": (8, (
        "Write an email about {event}.", "Write a short and polite email to my boss about {event}.",
        "Write a message to a friend about {event}.", "Write a formal letter about {event}.",
        "Write an advertisement for {product}.",
        "Write a product description for {product}.", "Write a slogan for {product}.", "Write a tweet about {topic}.",
        "Write a blog post about {topic}.", "Write an introduction for an essay about {topic}.",
        "Write a review of {product}.",
        "Write a cover letter for a job as {profession}.", "Write a speech about {topic}.",
        "Draft a reply to a mail about {event}.",
    )),
    "rewrite": (8, (
        "Correct the grammar: {sentence}", "Rewrite this in a formal style: {sentence}",
        "Make this sentence shorter: {sentence}",
        "Rewrite the following text so that it is easier to read.\n\n{passage}",
        "Summarize in one sentence:\n\n{passage}",
        "Summarize the following text:\n\n{passage}", "Write a title for this text:\n\n{passage}",
        "What are the key points of this text?\n\n{passage}", "Improve this sentence: {sentence}",
        "Read the text and ask three questions about it.\n\n{passage}", "Translate into {translation}: {phrase}",
        "How do you say \"{phrase}\" in {translation}?",
    )),
    "maths": (6, (
        "What is {2-99} plus {2-99}?", "What is {2-20} times {2-20}?", "Calculate {20-200} - {2-19}.",
        "What is {5-50}% of {20-400}?",
        "A shop sells pens for {2-9} dollars each. How much do {3-12} pens cost?",
        "I have {10-50} apples and give away {2-9}. How many are left?", "Solve for x: {2-9}x + {1-20} = {21-90}.",
        "A train travels {40-120} km per hour for {2-8} hours. How far does it go?",
        "A rectangle is {2-20} cm long and {2-20} cm wide. What is its area?", "Is {10-300} a prime number?",
        "If {2-6} workers need {4-20} days, how long do {7-12} workers need?",
        "What comes next: {1-5}, {6-10}, {11-15}, ...?",
        "Explain how to divide {20-200} by {2-9}.",
    )),
    "advice": (8, (
        "I am nervous about {event}. What should I do?", "How can I get better at {topic}?",
        "Give me advice on {topic}.",
        "I want to become {profession}. What should I learn first?", "Plan a three day trip to {place}.",
        "How do I talk to my family about {topic}?", "I have no time for {topic}. Any ideas?",
        "Should I spend money on {product}?",
        "You are {profession}. What do you tell a beginner about {topic}?", "What would you cook for {character}?",
        "My friend does not believe in {topic}. What can I say?", "What is a good gift for {profession}?",
    )),
    "knowledge": (5, (
        "True or false: {topic} has changed a lot in the last hundred years. Explain.",
        "Write a quiz question about {topic}, with the answer.",
        "Give me a fun fact about {place}.", "Which of these is more useful, {topic} or {topic}?",
        "Name a famous person linked to {place}.",
        "What is the weather like in {place}?", "What language do people speak in {place}?",
        "Which food is typical for {place}?",
        "Describe {topic} in exactly three words.", "What is the opposite of {topic}, if there is one?",
        "Give an example that involves {topic}.",
    )),
}  # fmt: skip

STYLES = (
    "Keep it short.", "Answer in one sentence.", "Be brief.", "Use simple words.", "Give an example.",
    "Answer in detail.",
    "Use bullet points.", "Explain your reasoning.", "Write at most three sentences.", "Please be specific.",
    "Answer in a friendly tone.", "Be creative.", "Answer like a teacher.",
)  # fmt: skip

FOLLOW_UPS = (
    "Can you give me an example?", "Why is that?", "Make it shorter.", "Tell me more.",
    "Thanks! What else should I know?",
    "Can you explain that in simpler words?", "What are the disadvantages?", "Are you sure?", "How would I start?",
    "And how is that related to {topic}?", "Can you write that as a list?", "What about {place}?",
    "Now do the same for {topic}.",
    "I don't understand. Can you say it differently?", "What would {profession} say about that?",
    "Rewrite it in a formal tone.",
    "Summarize your answer in one sentence.", "Give me three more.", "Who should I ask for help?", "Great, thank you!",
)  # fmt: skip

OPENINGS = (
    "Hello!", "Hi, who are you?", "Good morning! How are you today?", "What can you do?", "Tell me a joke.",
    "What is your name?", "Can you help me?", "I am bored. What should I do?", "Tell me something interesting.",
    "How are you?", "Hey there!", "What is the meaning of life?",
)  # fmt: skip

SYSTEMS = (
    "You are a helpful assistant.", "You are a friendly teacher.", "You answer briefly and precisely.",
    "You are an expert in {topic}.", "You are a helpful assistant who speaks like {profession}.",
)  # fmt: skip

_SLOT = re.compile(r"\{(?:(\d+)-(\d+)|(\w+))\}")


@cache
def words_of(name: str, held_out: bool) -> tuple[str, ...]:
    "The words of a list that held-out prompts have, or those that all others have: those with the least checksums."
    ""
    words = LISTS[name]
    kept_back = sorted(words, key=lambda word: zlib.crc32(word.encode()))[: max(2, len(words) // HELD_OUT_SHARE)]
    return tuple(word for word in words if (word in kept_back) == held_out)


def conversation(seed: int, index: int, held_out: bool = False) -> list[dict[str, str]]:
    """Prompt number ``index``: messages for a chat template, which the user's last turn ends.

    User turns after the first are asked when the model has answered the ones before. A held-out conversation has
    only words that no other has. The same arguments give the same conversation.
    """
    random_ = random.Random(f"{seed} {index} {held_out}")
    messages = []
    if random_.random() < 0.08:
        messages.append({"role": "system", "content": _fill(random_, random_.choice(SYSTEMS), held_out)})
    kinds = [kind for kind in TEMPLATES if not (held_out and kind == "maths")]  # which has numbers only, and no words
    kind = random_.choices(kinds, [TEMPLATES[kind][0] for kind in kinds])[0]
    text = random_.choice(TEMPLATES[kind][1])
    if random_.random() < 0.02 and not held_out:
        text = random_.choice(OPENINGS)
    elif random_.random() < 0.2 and kind not in ("code", "rewrite", "maths"):
        text = f"{text} {random_.choice(STYLES)}"
    messages.append({"role": "user", "content": _fill(random_, text, held_out)})
    while random_.random() < 0.25 and len(messages) < 4:
        messages.append({"role": "user", "content": _fill(random_, random_.choice(FOLLOW_UPS), held_out)})
    return messages


def _fill(random_: random.Random, template: str, held_out: bool) -> str:
    """Fill a template's slots, with held-out words only or with none of them."""

    def word(match: re.Match[str]) -> str:
        low, high, name = match.groups()
        if low:
            return str(random_.randint(int(low), int(high)))
        return random_.choice(words_of(name, held_out))

    text = _SLOT.sub(word, template)
    return text[0].upper() + text[1:] if template.startswith("{") else text
