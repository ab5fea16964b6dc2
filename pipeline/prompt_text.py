"""The texts that are measured with: prose, from which prompts are cut, and what a user may ask."""

from __future__ import annotations

from edgepipe.errors import ContextError, TokenizerError
from edgepipe.runtimes.llm.chat_template import ChatTemplate
from edgepipe.runtimes.llm.tokenizer import Tokenizer

TEXT = """\
The weather station stands at the end of the pier, forty steps beyond the last lamp. It is a white wooden box with
slatted sides, a rain gauge, and a mast that carries a vane and a cup anemometer. Marta has read it every morning at
seven since the harbour office gave up the post, and she writes what she reads into a notebook with a pencil, because
ink runs when it is wet.

The order never changes. First the thermometer, before her breath or the warmth of her hands can reach it. Then the
wet bulb, the barometer, the gauge, and at last the wind, which needs patience: she watches the vane for two minutes
and notes the direction it prefers, not the one it happens to show. When a reading looks wrong she takes it again and
writes down both. A number that was crossed out, she says, is still a number that somebody saw.

Over the years the notebooks have filled a shelf. A student from the university came one summer to copy them, and
asked why some days had two columns. Marta explained that a storm in her third winter had bent the mast, and that for
a month she had kept the old instrument and the new one side by side. They never agreed exactly. The new one read
higher in gusts and lower in a steady breeze, and without that month nobody could have said whether the climate had
changed or only the cups. The student drew the two curves on one sheet and wrote the difference between them below.

"Which of the two is right?" he asked.

"Neither," she said. "But I know how far they are apart, and that is worth more."

He stayed until the autumn. They agreed on a plan for the next instrument: read it at the same hour, in the same
order, beside the old one, for as long as it takes until the difference no longer moves. They would keep every
reading. They would write down what else happened on that day: whether the sun had been on the box, whether the
ferry had come in and shaken the pier, who had held the pencil. If a reading could not be taken, there would be a dash
in its place and a word about why, and never the value of the day before.

Such a plan costs little. It takes a few minutes a day, one more column, and the honesty to leave a gap. What it buys
can be seen only later, when someone who was not there opens the notebook and must decide how far to trust it. In the
second year the barometer began to drift, so slowly that no single morning gave it away. It was found because the
spread of the differences had grown, from two tenths to five, while their middle had hardly moved. The student, by
then in another town, saw it on the sheet that Marta sent him every quarter, and wrote back on the same day.

The pier has been repaired since, and the box has a new coat of paint. There is a small computer under the bench now
that reads the instruments every ten seconds and sends its table to the mainland. Marta has nothing against it. She
comes at seven all the same, reads the thermometer first, and compares. On most mornings the two agree to a tenth of a
degree. On the others she writes both numbers down, looks at the sky, the ferry and the clock, and adds a word about
why.

To read an instrument well, do the same thing every time:

1. Come at the same hour.
2. Read in the same order.
3. Write down what you see, not what you expect.
4. If a reading looks wrong, take it again and keep both.
5. If there is no reading, leave a dash and say why.
"""

QUESTIONS = ("How do I bake bread at home?", "Explain how a bicycle stays upright.")


def chat_prompts(tokenizer: Tokenizer, template: ChatTemplate | None) -> list[list[int]]:
    """`QUESTIONS` as the model expects them; the beginning of the prose if it is not made for chats."""
    if template is not None:
        try:
            rendered = [template.render([{"role": "user", "content": question}]) for question in QUESTIONS]
            return [tokenizer.encode(text, add_special_tokens=False) for text in rendered]
        except TokenizerError:
            pass  # a template that wants more than a question, which ``--raw`` gets along with
    return [prompt_tokens(tokenizer, TEXT, 32)]


def prompt_tokens(tokenizer: Tokenizer, text: str, count: int) -> list[int]:
    """The first ``count`` tokens of ``text``, which is repeated if it has fewer.

    Raises:
        ContextError: the text has no tokens.
    """
    tokens = tokenizer.encode(text)
    again = tokenizer.encode(text, add_special_tokens=False)
    if not again:
        raise ContextError("the text to measure with has no tokens: give a --file that holds some")
    while len(tokens) < count:
        tokens += again
    return tokens[:count]
