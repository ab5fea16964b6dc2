"""The job behind `edgepipe run`: answer a prompt, or hold a conversation, with a bundle."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgepipe.errors import ContextError, RecipeError
from edgepipe.pipeline.bundle import Bundle
from edgepipe.pipeline.session import DecodeOptions, Session
from edgepipe.runtimes.llm.generate import Generation, generate
from edgepipe.runtimes.llm.rounds import speculation
from edgepipe.runtimes.llm.speculative import SpeculativeDecoder


@dataclass(frozen=True)
class Answer:
    """A finished answer: its text, the figures of its generation, the bytes of all KV caches, and the engine."""

    text: str
    generation: Generation
    kv_bytes: int
    engine: str

    def to_json(self) -> dict[str, Any]:
        """The answer as one JSON-ready dict."""
        generation = self.generation
        return {
            "text": self.text,
            "finish_reason": generation.finish_reason,
            "prompt_tokens": generation.prompt_tokens,
            "tokens": generation.tokens,
            "ttft_ms": generation.ttft_ms,
            "decode_tokens_per_s": generation.decode_tokens_per_s,
            "acceptance_rate": generation.acceptance_rate,
            "tokens_per_round": generation.tokens_per_round,
            "estimated_speedup": generation.estimated_speedup,
            "speculation": speculation(generation.rounds),
            "time_split": generation.time_split,
            "kv_bytes": self.kv_bytes,
            "engine": self.engine,
        }


def run(
    bundle: str | Path,
    prompt: str,
    options: DecodeOptions | None = None,
    *,
    max_new_tokens: int = 256,
    stop: Sequence[str] = (),
    stop_tokens: Sequence[str] = (),
    raw: bool = False,
    system: str | None = None,
) -> Answer:
    """Answer ``prompt`` with the bundle's target model.

    Args:
        bundle: folder written by `edgepipe.export`.
        prompt: what the user says; sent through the model's chat template unless ``raw``.
        options: how text is decoded; greedy, full cache, no drafter by default.
        max_new_tokens: most tokens of the answer.
        stop: strings that end the answer and are not part of it.
        stop_tokens: tokens, as text or id, that end the answer as the model's own end token does.
        raw: continue ``prompt`` as it stands.
        system: system message before the prompt.

    Raises:
        EdgepipeError: the bundle is damaged, the prompt does not fit, an option is out of range.
    """
    session = Session(Bundle.open(bundle), options or DecodeOptions())
    conversation = Conversation(session, max_new_tokens, stop, stop_tokens, system=system, raw=raw, turns=1)
    text = "".join(conversation.say(prompt))
    return Answer(text, conversation.generation, conversation.kv_bytes, session.engine)


class Conversation:
    """Turns of a chat; what the caches hold of earlier turns is not fed again."""

    def __init__(
        self,
        session: Session,
        max_new_tokens: int,
        stop: Sequence[str] = (),
        stop_tokens: Sequence[str] = (),
        *,
        system: str | None = None,
        raw: bool = False,
        turns: int | None = None,
    ) -> None:
        """``turns=1`` sizes the caches for one prompt and answer; with None they grow with the conversation.

        Raises:
            RecipeError: no token is asked for, or a stop string is empty.
        """
        if type(max_new_tokens) is not int or max_new_tokens < 1:
            raise RecipeError(f"max_new_tokens is {max_new_tokens!r}: expected 1 or more")
        self.stop = [stop] if isinstance(stop, str) else stop
        if "" in self.stop:
            raise RecipeError("a stop string is empty: it would end every answer before it begins")
        self.session = session
        self.max_new_tokens = max_new_tokens
        self.stop_tokens = stop_tokens
        self.raw = raw or session.template is None
        self.turns = turns
        self.generation = Generation(0)
        self._messages = [{"role": "system", "content": system}] if system else []
        self._rendered = ""
        self._decoder: SpeculativeDecoder | None = None

    @property
    def kv_bytes(self) -> int:
        """Bytes of all keys and values allocated, the draft's included."""
        return self._decoder.kv_bytes if self._decoder else 0

    def say(self, prompt: str) -> Iterator[str]:
        """Pieces of the answer to ``prompt`` as they come.

        Raises:
            ContextError: the prompt is empty, or the conversation has outgrown the model's context.
        """
        if not isinstance(prompt, str):
            raise ContextError(f"the prompt is {type(prompt).__name__}: expected text")
        if not prompt:
            raise ContextError("the prompt is empty, it has no tokens: give at least a word")
        self._messages.append({"role": "user", "content": prompt})
        tokens = self._tokens()
        decoder = self._decoder_for(len(tokens))
        room = self.max_new_tokens
        if self.session.options.cache.policy == "full":
            room = min(room, decoder.target.policy.budget - len(tokens))
        if room < 1:
            raise ContextError(
                f"the text of {len(tokens)} tokens fills the model's context of {self.session.spec.context_length}: "
                "shorten it, or set --policy h2o or window with a --budget"
            )
        self.generation, pieces = generate(decoder, self.session.tokenizer, tokens, room, self.stop)
        answer = ""
        try:
            for piece in pieces:
                answer += piece
                yield piece
        finally:
            if self.generation.finish_reason == "length" and room < self.max_new_tokens:
                self.generation.finish_reason = "context"
            self._messages.append({"role": "assistant", "content": answer})
            self._rendered += answer

    def _tokens(self) -> list[int]:
        """The conversation up to the next answer.

        The answer's own tokens are kept where they spell its text, since encoding the text again may cut it
        differently and the cache would be worth nothing.
        """
        tokenizer = self.session.tokenizer
        if self.raw:
            earlier = self._decoder.text if self._decoder else []
            return [*earlier, *tokenizer.encode(self._messages[-1]["content"], add_special_tokens=not earlier)]
        assert self.session.template is not None
        before, self._rendered = self._rendered, self.session.template.render(self._messages)
        whole = self.generation.finish_reason in ("stop_token", "length", "context")
        if self._decoder and whole and self._rendered.startswith(before):
            text = self._decoder.text
            ended = self.generation.finish_reason == "stop_token"
            kept = text[:-1] if ended else text
            return [*kept, *tokenizer.encode(self._rendered[len(before) :], add_special_tokens=False)]
        return tokenizer.encode(self._rendered, add_special_tokens=False)

    def _decoder_for(self, prompt_tokens: int) -> SpeculativeDecoder:
        """The decoder of this conversation; one with larger caches when the text no longer fits those of the last.

        Three times the room is made each time, so that most turns find it and few texts are fed anew.
        """
        options, context = self.session.options.cache, self.session.spec.context_length
        needed = prompt_tokens + self.max_new_tokens
        if options.policy != "full":
            total = context if self.turns is None else needed
        else:
            needed = min(needed, context)
            total = needed if self.turns else min(3 * needed, context)
        if self._decoder is None or (options.policy == "full" and needed > self._decoder.target.policy.budget):
            self._decoder = None  # before its successor takes memory
            self._decoder = self.session.decoder(total, self.stop_tokens)
        return self._decoder
