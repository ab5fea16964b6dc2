"""Twenty prompts of five kinds, from text that guesses itself to text that no draft knows."""

from __future__ import annotations

import numpy as np

from edgepipe.pipeline.session import Session

KINDS = ("chat", "code", "copy-heavy", "random tokens", "unseen language")
RANDOM_TOKENS = 100

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
    """Repeat this recipe exactly as it is:

Potato soup for four people
1. Peel 800 grams of potatoes and cut them into cubes of two centimetres.
2. Chop one onion, two carrots and a stick of celery.
3. Melt 30 grams of butter in a large pot and fry the onion until it is soft.
4. Add the potatoes, the carrots and the celery, and stir for three minutes.
5. Pour in 1.2 litres of vegetable stock and let it simmer for 25 minutes.
6. Crush a third of the potatoes with a fork, so that the soup gets thick.
7. Season with salt, pepper, nutmeg and a spoonful of vinegar.
8. Serve with chopped parsley and slices of dark bread.""",
    """Copy this table without any change:

| day | morning | afternoon | evening |
|---|---|---|---|
| Monday | mathematics, room 12 | football in the yard | choir practice |
| Tuesday | history, room 7 | chemistry laboratory | free |
| Wednesday | geography, room 12 | library | theatre group |
| Thursday | mathematics, room 9 | swimming pool | free |
| Friday | biology, room 3 | painting | film club |""",
    """Change the name Peter to Martin in this text, and write out all of it:

Peter lived in the last house before the forest. Every morning Peter fed the hens, carried water from the well and \
opened the shutters of the workshop. In the workshop Peter repaired clocks that people from the whole valley brought \
to him. Some of the clocks were older than the church, and Peter knew the story of every one of them. On Sundays Peter \
closed the workshop, put on his brown coat and walked to the village, where his sister waited for him with the coffee. \
In the afternoon Peter walked home along the river and listened to the bells.""",
    """Add a docstring to the function `total` and print the whole program again:

def total(orders):
    result = 0
    for order in orders:
        if order["status"] == "cancelled":
            continue
        price = order["price"] * order["quantity"]
        if order["country"] == "NO":
            price = price * 1.25
        result = result + price
    return result

orders = [
    {"status": "sent", "price": 12, "quantity": 3, "country": "NO"},
    {"status": "cancelled", "price": 99, "quantity": 1, "country": "DK"},
    {"status": "sent", "price": 7, "quantity": 10, "country": "DK"},
]
print(total(orders))""",
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
    for _ in range(4):
        found.append(("random tokens", random.integers(session.spec.vocab_size, size=RANDOM_TOKENS).tolist()))
    return found + [("unseen language", question(text)) for text in UNSEEN]
