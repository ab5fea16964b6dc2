"""What exported decoders are validated on: short prompts of different kinds and one longer text, written for this."""

from __future__ import annotations

PROMPTS: tuple[str, ...] = (
    "The capital of France is",
    "Explain in two sentences why the sky looks blue at noon and red at sunset.",
    "def fibonacci(n: int) -> int:\n    if n < 2:\n        return n\n    return",
    "List the first ten prime numbers: 2, 3, 5, 7,",
    "Translate into German: The train to Hamburg leaves at nine o'clock.",
    "Once upon a time, a lighthouse keeper found a small green bottle on the beach. Inside it",
    '{"name": "edge device", "cores": 4, "memory_gib": 8, "sensors": ["temperature", "',
    "Question: A shop sells apples at 3 coins each. Anna pays with 20 coins and buys 5 apples. "
    "How many coins does she get back?\nAnswer:",
    "Dear Ms. Okafor,\n\nthank you for your application. We are pleased to",
    "SELECT city, COUNT(*) FROM customers WHERE country = 'PT' GROUP BY",
    "Summer in the mountains: mornings are cold, afternoons warm, and by evening the",
    "Le musée est fermé le lundi, mais il ouvre tous les autres jours à",
)

TEXT = """\
The river had three names before anyone thought of measuring it. Upstream, where it was hardly wider than a cart, \
the shepherds called it the Thread. In the middle valley, where it turned the wheels of eleven mills, it was \
simply the Water. And at the coast, where it slowed, spread and went brown with silt, the fishermen called it the \
Old Woman, because it came late to everything and always brought something nobody had asked for.

When the surveyors arrived in the spring of that year, they brought brass instruments, a mule, and a notebook \
ruled in columns. Their leader, a careful man named Tomas Brandt, explained to the village council that the \
government wished to know how much water passed the bridge in a day. The council listened politely. Then the \
oldest of them, a woman who had kept the ferry for forty years, asked him on which day.

It was a better question than it seemed. A river is not a number, she said; it is a habit, and habits change with \
the weather. In April the snow comes down and the ferry cannot cross before noon. In August the children walk from \
bank to bank and come home with dry knees. If you want to know the river, you have to measure it many times and \
then be honest about how far apart your answers lie.

Brandt wrote that down. He had been taught to report the average and to leave the rest to the reader's goodwill, \
but the average, he began to see, was a day that never happened. So he changed the columns of his notebook. In the \
first he wrote the date and the hour. In the second, the depth at the middle pillar of the bridge. In the third, \
the time that a cork needed to drift from the first pillar to the last. In the fourth, which he added with some \
embarrassment, he wrote what the ferry keeper had expected before he took the measurement.

For the first two weeks her guesses were better than his calculations. She looked at the colour of the water, at \
the birds on the sandbank, at the clouds over the pass, and named a depth that was seldom wrong by more than the \
width of a hand. He asked her how she did it. She shrugged. You look at what it did yesterday, she said, and you \
look at what is coming, and you do not let either of them talk you out of the other.

In the third week it rained. The water rose so quickly that the cork was useless, and Brandt stood on the bridge \
with a lantern, counting branches instead. At midnight the mule broke loose. At two in the morning the lower mill \
lost its wheel, which came down the valley turning slowly, like a coin that has not decided how to fall. By dawn \
the middle pillar had disappeared under foam, and the notebook had no column for that.

What he learned from the flood was not in the measurements. It was that every instrument has a range, and that \
outside of this range it does not become silent, as one would wish. It goes on giving answers. The depth gauge, \
its chain caught under a log, reported the same calm figure for nine hours while the meadow turned into a lake. If \
he had stayed in bed, he would have believed it. From then on he wrote, next to each value, a small mark: a circle \
when he had seen with his own eyes that the instrument was free, a cross when he had not.

Years later, when Brandt taught at the school for engineers, he began each course with the same exercise. He gave \
every student a sealed box with a thermometer in it and asked for the temperature in the box, together with a \
reason to trust it. Most of them read the scale and wrote a number with one decimal place. A few shook the box \
first. Once in a while, a student would open the lid, find that the thermometer had been broken all along, and \
laugh. Those he remembered.

There are simple rules for measuring anything, he used to tell them, and they fit on a single page.

First, decide what you would do differently if the answer were larger or smaller. If the honest reply is \
"nothing", save the effort and go fishing.

Second, measure the same thing twice before you measure two things once. The difference between the two results is \
the only part of the experiment that cannot flatter you.

Third, change one thing at a time, and then change it back. An effect that does not go away when its cause is \
removed was never its effect.

Fourth, write down what you expect before you look. Afterwards you will find that you have always known it.

Fifth, keep the bad days. A table without outliers has usually been cleaned by somebody who knew which result was \
wanted, and that somebody was probably you.

The students copied the rules and forgot them, as students do, and rediscovered them one by one at some cost. One \
built a pump that worked perfectly at the bench and failed in the field, because the bench was indoors and the \
field was not. Another proved that a new oil made an engine run cooler; it turned out that he had always tested \
the old oil in the afternoon. A third, who had become rather famous, came back after many years to show Brandt a \
gauge of her own design. It was no larger than a walnut. It drew its power from the current itself and sent the \
depth of the river, every ten minutes, to a small receiver in the council house.

Brandt turned it over in his hands. He asked what it did when a log lay on its chain.

"It has no chain," she said.

He asked what it did when the battery was low, when the receiver was off, when the water froze. She had an answer \
for each of these, and where she had none she said so. At last he asked the question that he had carried with him \
since the night on the bridge: how would a reader, far away and in a hurry, know the difference between a calm \
river and a gauge that had stopped caring?

She smiled, because she had been his student after all. On the side of the walnut there was a tiny window, and \
behind it a wheel that turned with the current. With every depth the gauge also sent how often the wheel had gone \
round since the last report. A calm river still turns the wheel a little. A dead gauge does not. If the two \
numbers disagree, the receiver rings a bell, and somebody has to put on their boots and go and look.

"And does it happen often?" he asked.

"Twice a year," she said. "Once it was a log. Once it was a duck. And once", she added, counting on her fingers \
and finding that she had one too many, "it was the river, doing something that it had never done before."

He wrote that down as well, and next to it, after some thought, he drew a circle.
"""
