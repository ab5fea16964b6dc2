"""From a prompt's tokens to streamed text: stop tokens, stop strings, limits and the figures of the run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from statistics import median

from edgepipe.runtimes.llm.rounds import Round, time_split
from edgepipe.runtimes.llm.speculative import SpeculativeDecoder
from edgepipe.runtimes.llm.tokenizer import TextStream, Tokenizer


@dataclass
class Generation:
    """What one answer took.

    Attributes:
        prompt_tokens: tokens of the prompt.
        tokens: generated tokens, a stop token included.
        finish_reason: ``stop_token``, ``stop_string``, ``length``, ``interrupted``, or ``context``, where the model's
            context left room for fewer tokens than were asked for.
        prefill: the round that fed the prompt and chose the first token.
        rounds: the rounds after it.
    """

    prompt_tokens: int
    tokens: list[int] = field(default_factory=list)
    finish_reason: str = "interrupted"
    prefill: Round | None = None
    rounds: list[Round] = field(default_factory=list)

    @property
    def ttft_ms(self) -> float | None:
        """Milliseconds from the start of the prefill to the first token."""
        return self.prefill.total_ns / 1e6 if self.prefill else None

    @property
    def decode_tokens_per_s(self) -> float | None:
        """Tokens after the first, divided by the time of the rounds that made them."""
        elapsed_ns = self._rounds_ns
        return 1e9 * sum(len(entry.tokens) for entry in self.rounds) / elapsed_ns if elapsed_ns else None

    @property
    def time_split(self) -> dict[str, float] | None:
        """Shares of the time of the rounds (`rounds.time_split`)."""
        return time_split(self.rounds, self._rounds_ns) if self.rounds else None

    @property
    def acceptance_rate(self) -> float | None:
        """Accepted guesses divided by checked guesses."""
        drafted = sum(entry.drafted for entry in self.rounds)
        return sum(entry.accepted for entry in self.rounds) / drafted if drafted else None

    @property
    def tokens_per_round(self) -> float | None:
        """Tokens per forward of the target after the prefill."""
        return sum(len(entry.tokens) for entry in self.rounds) / len(self.rounds) if self.rounds else None

    @property
    def estimated_speedup(self) -> float | None:
        """Against plain decoding, taking each token to cost the median of this run's plain rounds; None without any."""
        plain = [entry.total_ns for entry in self.rounds if not entry.drafted]
        if not plain or len(plain) == len(self.rounds):
            return None
        return median(plain) * sum(len(entry.tokens) for entry in self.rounds) / self._rounds_ns

    @property
    def _rounds_ns(self) -> int:
        return sum(entry.total_ns for entry in self.rounds)


def generate(
    decoder: SpeculativeDecoder,
    tokenizer: Tokenizer,
    prompt: Sequence[int],
    max_new_tokens: int,
    stop_strings: Sequence[str] = (),
) -> tuple[Generation, Iterator[str]]:
    """Generate after ``prompt``, piece by piece.

    Returns:
        The figures, filled in as the iterator is consumed, and the iterator over pieces of text. Special tokens
        are not shown, and a stop string neither, nor anything after it. Whoever stops consuming early (Ctrl-C)
        leaves ``finish_reason`` at ``interrupted`` and figures that are true up to there.
    """
    generation = Generation(len(prompt))
    return generation, _pieces(decoder, tokenizer, prompt, max_new_tokens, stop_strings, generation)


def _pieces(
    decoder: SpeculativeDecoder,
    tokenizer: Tokenizer,
    prompt: Sequence[int],
    max_new_tokens: int,
    stop_strings: Sequence[str],
    generation: Generation,
) -> Iterator[str]:
    stream = TextStream(tokenizer)
    held = HeldText(stop_strings)
    pieces: list[str] = []

    def spell(tokens: list[int]) -> int:
        """Turn tokens into ``pieces``, up to a stop string; how many they are."""
        for count, token in enumerate(tokens, 1):
            if token not in decoder.stop_tokens:
                pieces.append(held.push(stream.push(token)))
            if held.stopped:
                return count
        return len(tokens)

    generation.prefill = entry = decoder.start(prompt)
    spell(entry.tokens)
    while True:
        generation.tokens += entry.tokens
        yield from pieces
        pieces.clear()
        if held.stopped:
            generation.finish_reason = "stop_string"
            return
        if entry.tokens[-1] in decoder.stop_tokens:
            generation.finish_reason = "stop_token"
            break
        if len(generation.tokens) == max_new_tokens:
            generation.finish_reason = "length"
            break
        entry = decoder.step(max_new_tokens - len(generation.tokens), spell)
        generation.rounds.append(entry)
    yield held.push(stream.flush()) + held.flush()
    if held.stopped:
        generation.finish_reason = "stop_string"


class HeldText:
    """Holds back text that may turn out to begin a stop string."""

    def __init__(self, stop_strings: Sequence[str]) -> None:
        self.stop_strings = [stop for stop in stop_strings if stop]
        self.stopped = False
        self._held = ""

    def push(self, piece: str) -> str:
        """Text that is now certain to be shown."""
        if self.stopped:
            return ""
        self._held += piece
        found = [at for stop in self.stop_strings if (at := self._held.find(stop)) >= 0]
        if found:
            self.stopped = True
            shown, self._held = self._held[: min(found)], ""
            return shown
        longest = max((len(stop) - 1 for stop in self.stop_strings), default=0)
        for size in range(min(longest, len(self._held)), 0, -1):
            if any(stop.startswith(self._held[-size:]) for stop in self.stop_strings):
                shown, self._held = self._held[:-size], self._held[-size:]
                return shown
        shown, self._held = self._held, ""
        return shown

    def flush(self) -> str:
        """What was held back, the text being at its end."""
        shown, self._held = self._held, ""
        return shown
