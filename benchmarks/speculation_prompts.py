"""Twenty prompts of five kinds, from text that guesses itself to text that no draft knows."""

from __future__ import annotations

import numpy as np

from edgepipe.pipeline.session import Session

KINDS = ("chat", "code", "copy-heavy", "random tokens", "unseen language")
RANDOM_TOKENS = 80

CHAT = (
    "Explain to a child why the sky is blue during the day and red in the evening.",
    "I have two free days in a small town by the sea. What could I do there if it rains the whole time?",
    "My neighbour's dog barks every night. Write a friendly letter that asks for a solution.",
    "What are the main differences between a bicycle with a chain and one with a belt?",
)

# The first two are continued as they are, the others are questions.
CODE = (
    '''class RingBuffer:
    """Keeps the last `capacity` items; older ones are overwritten."""

    def __init__(self, capacity):
        self.items = [None] * capacity
        self.start = 0
        self.count = 0

    def append(self, item):
''',
    """#include <stdio.h>
#include <stdlib.h>

/* A binary search tree of integers. */
struct node {
    int key;
    struct node *left;
    struct node *right;
};

struct node *insert(struct node *root, int key)
{
""",
    "Write a Python function that reads a CSV file with the columns name, city and age, and prints the average age in "
    "every city, sorted by city. Add a short test.",
    "Write a shell script that renames all files ending in .jpeg in a folder to .jpg, and skips those whose new name "
    "is taken already.",
)

COPY = (
    """Repeat this list exactly as it is:

1. Peel 800 grams of potatoes and cut them into cubes of two centimetres.
2. Chop one onion, two carrots and a stick of celery.
3. Melt 30 grams of butter in a large pot and fry the onion until it is soft.
4. Add the potatoes, the carrots and the celery, and stir for three minutes.
5. Pour in 1.2 litres of vegetable stock and let it simmer for 25 minutes.
6. Crush a third of the potatoes with a fork, so that the soup gets thick.
7. Season with salt, pepper, nutmeg and a spoonful of vinegar.
8. Serve with chopped parsley and slices of dark bread.""",
    """Correct the spelling of this text and repeat all of it:

The libary of our village is in the old school beside the bridge. It opens every Tuesday and every Friday at three in \
the afternoon. Mrs Jansen, who has kept the books for thirty years, knows what every reader likes. She puts new novels \
on the round table near the window, and the childrens' books on the low shelves by the stove. In winter many people \
come only to read the newspapers and to drink a cup of tea. Last year the roof was repaired, and since then the rain \
stays outside.""",
    """Change the name Peter to Martin in this text, and write out all of it:

Peter lived in the last house before the forest. Every morning Peter fed the hens, carried water from the well and \
opened the shutters of the workshop. In the workshop Peter repaired clocks that people from the whole valley brought \
to him. Some of the clocks were older than the church, and Peter knew the story of every one of them. On Sundays Peter \
closed the workshop, put on his brown coat and walked to the village, where his sister waited for him with the coffee. \
In the afternoon Peter walked home along the river and listened to the bells.""",
    """Correct the spelling in the comments of this program and repeat all of it:

# Reads the temprature of the room every minute.
import time
import sensor

LIMIT = 26.5

def main():
    warned = False
    while True:
        value = sensor.read("room")
        # Warn only once untill it is cool again.
        if value > LIMIT and not warned:
            print("It is too warm:", value)
            warned = True
        if value < LIMIT - 1:
            warned = False
        time.sleep(60)

main()""",
)

# Finnish, Turkish, Polish, Hungarian.
UNSEEN = (
    "Kerro lyhyesti, miten leipää leivotaan kotona ja mitä siihen tarvitaan.",
    "İstanbul'da iki gün geçirecek bir turist nereleri gezmeli? Kısaca anlat.",
    "Napisz krótkie opowiadanie o starym zegarmistrzu, który mieszka nad rzeką.",
    "Magyarázd el röviden, miért fontos, hogy minden nap sétáljunk a szabadban.",
)


def prompts(session: Session) -> list[tuple[str, list[int]]]:
    """Kind and tokens of each prompt; questions stand in the model's chat template."""
    tokenizer, template = session.tokenizer, session.template
    if template is None:
        raise SystemExit(f"{session.bundle.folder} has no chat template: export an instruction-tuned model")

    def question(text: str) -> list[int]:
        return tokenizer.encode(template.render([{"role": "user", "content": text}]), add_special_tokens=False)

    random = np.random.default_rng(0)
    found = [("chat", question(text)) for text in CHAT]
    found += [("code", tokenizer.encode(text)) for text in CODE[:2]] + [("code", question(text)) for text in CODE[2:]]
    found += [("copy-heavy", question(text)) for text in COPY]
    for number in range(4):  # two as they are, two as questions
        tokens = random.integers(session.spec.vocab_size, size=RANDOM_TOKENS).tolist()
        found.append(("random tokens", tokens if number < 2 else question(tokenizer.decode(tokens))))
    return found + [("unseen language", question(text)) for text in UNSEEN]
