"""Samples many conversations at a time through an exported graph: one row of the batch each, refilled when it ends."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from edgepipe.errors import EngineError, MissingExtra
from edgepipe.exporters.llm.distill.samples import TEACHER_TOKENS, Sample
from edgepipe.runtimes.llm.spec import DecoderSpec

try:
    import onnxruntime as ort
    import torch
except ImportError as missing:
    raise MissingExtra(missing.name or "torch", "export") from missing

# Answers are drawn from so many of the most likely tokens.
CANDIDATES = 64


@dataclass(frozen=True)
class Request:
    """What the target is asked.

    Attributes:
        turns: token ids of the prompt, and what follows each finished answer but the last (its end not included).
        temperature: of the answers; 0 is greedy.
        seed: of the draws.
    """

    turns: tuple[list[int], ...]
    temperature: float
    seed: tuple[int, ...]


@dataclass
class _Row:
    """A conversation in the batch; ``cached`` of its tokens are in the cache."""

    order: int
    temperature: float
    random: np.random.Generator
    turns: deque[list[int]]
    tokens: list[int] = field(default_factory=list)
    written: list[bool] = field(default_factory=list)
    ids: list[np.ndarray] = field(default_factory=list)
    probabilities: list[np.ndarray] = field(default_factory=list)
    cached: int = 0
    answer_tokens: int = 0

    def ask(self) -> None:
        """Append the next turn."""
        turn = self.turns.popleft()
        self.tokens += turn
        self.written += [False] * len(turn)
        self.answer_tokens = 0

    def sample(self) -> Sample:
        return Sample(
            np.array(self.tokens, np.int32),
            np.array(self.written),
            np.array(self.ids, np.int32).reshape(-1, TEACHER_TOKENS),
            np.array(self.probabilities, np.float16).reshape(-1, TEACHER_TOKENS),
        )


class BatchSampler:
    """A decoder graph (`edgepipe.exporters.llm.onnx`, the plain one) that continues up to ``batch`` conversations.

    The engine's GroupQueryAttention takes any batch for one new token each, each row with a length of its own; prompts
    go through alone. Rows lie next to each other: the last one moves into the place of one that ends.
    """

    def __init__(self, model: Path, spec: DecoderSpec, batch: int, capacity: int, threads: int) -> None:
        """Load ``model``; ``capacity`` is the longest conversation, in tokens.

        Raises:
            EngineError: onnxruntime refuses the file.
        """
        self.spec = spec
        self.ends = spec.eos_token_ids
        self.capacity = min(capacity, spec.context_length)
        options = ort.SessionOptions()
        options.intra_op_num_threads = threads
        options.enable_mem_pattern = False
        options.log_severity_level = 3
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # a long job leaves others their cores
        try:
            self.session = ort.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
        except Exception as error:  # onnxruntime's exceptions share no public base class
            raise EngineError(f"{model}: onnxruntime cannot load it: {error}") from error
        self.io = self.session.io_binding()
        shape = (spec.num_layers, 2, batch, spec.num_kv_heads, self.capacity, spec.head_dim)
        self.cache = np.zeros(shape, np.float32)
        self.logits = np.empty((batch, 1, spec.vocab_size), np.float32)
        self._first: tuple[list[int], np.ndarray] | None = None  # a prompt and its cache: most begin like it
        self._kept: dict[str, np.ndarray] = {}

    def run(self, requests: Sequence[Request], max_answer: int) -> list[Sample]:
        """Sample an answer, of at most ``max_answer`` tokens, to every turn of every request that leaves room for one.

        A conversation ends when its last answer does, at an answer that was cut, or when it does not fit the capacity.
        The same requests give the same samples on the same machine.
        """
        self._first = None
        waiting = deque(each for each in enumerate(requests) if 0 < len(each[1].turns[0]) < self.capacity)
        rows: list[_Row] = []
        samples: list[Sample | None] = [None] * len(requests)
        while waiting or rows:
            while waiting and len(rows) < self.cache.shape[2]:
                order, request = waiting.popleft()
                rows.append(_Row(order, request.temperature, np.random.default_rng(request.seed), deque(request.turns)))
                self._ask(len(rows) - 1, rows[-1])
            self._step(rows)
            for index in reversed(range(len(rows))):
                row = rows[index]
                ended = row.tokens[-1] in self.ends
                room = self.capacity - len(row.tokens)
                if ended and row.turns and len(row.turns[0]) < room:
                    self._ask(index, row)
                elif ended or not room or row.answer_tokens == max_answer:
                    samples[row.order] = row.sample()
                    self._remove(index, rows)
        return [sample for sample in samples if sample is not None]

    def _ask(self, index: int, row: _Row) -> None:
        """Append the next turn and feed all that is not in the cache but the last token, which the next step feeds."""
        row.ask()
        if row.cached == 0 and self._first:
            tokens, cache = self._first
            row.cached = _common_prefix(tokens, row.tokens[:-1])
            self.cache[:, :, index, :, : row.cached] = cache[:, :, :, : row.cached]
        new = row.tokens[row.cached : -1]
        if not new:
            return
        positions = np.arange(row.cached, row.cached + len(new))
        self._bind(slice(index, index + 1))
        self._feed("input_ids", np.array([new], np.int64))
        self._feed("attention_mask", np.ones((1, row.cached + len(new)), np.int64))
        self._feed("position_ids", positions[None])
        self._feed("logits_from", np.array([len(new) - 1], np.int64))
        self._forward(self.logits[:1])
        row.cached += len(new)
        if not self._first:
            self._first = row.tokens[:-1], self.cache[:, :, index, :, : row.cached].copy()

    def _step(self, rows: Sequence[_Row]) -> None:
        """One more token for every row."""
        count = len(rows)
        lengths = np.array([row.cached for row in rows])[:, None]
        self._bind(slice(0, count))
        self._feed("input_ids", np.array([row.tokens[-1:] for row in rows], np.int64))
        self._feed("attention_mask", (np.arange(lengths.max() + 1) <= lengths).astype(np.int64))
        self._feed("position_ids", lengths)
        self._feed("logits_from", np.array([0], np.int64))
        self._forward(self.logits[:count])
        logits = torch.from_numpy(self.logits[:count, 0])
        top, ids = (result.numpy() for result in logits.topk(min(CANDIDATES, self.spec.vocab_size)))
        probabilities = np.exp(top[:, :TEACHER_TOKENS] - logits.logsumexp(-1, keepdim=True).numpy())
        for row, row_top, row_ids, row_probabilities in zip(rows, top, ids, probabilities, strict=True):
            chosen = 0
            if row.temperature:
                weights = np.exp((row_top - row_top[0]).astype(np.float64) / row.temperature).cumsum()
                chosen = int(np.searchsorted(weights, row.random.random() * weights[-1], side="right"))
            row.tokens.append(int(row_ids[chosen]))
            row.written.append(True)
            row.ids.append(row_ids[:TEACHER_TOKENS])
            row.probabilities.append(row_probabilities)
            row.cached += 1
            row.answer_tokens += 1

    def _remove(self, index: int, rows: list[_Row]) -> None:
        last = rows.pop()
        if index < len(rows):
            rows[index] = last
            self.cache[:, :, index, :, : last.cached] = self.cache[:, :, len(rows), :, : last.cached]

    def _bind(self, rows: slice) -> None:
        """Bind these rows of the cache as past and present: the engine writes new keys and values in place."""
        for layer in range(self.spec.num_layers):
            for part, kind in enumerate(("key", "value")):
                array = self.cache[layer, part, rows]
                place = ("cpu", 0, array.dtype, array.shape, array.ctypes.data)
                self.io.bind_input(f"past_key_values.{layer}.{kind}", *place)
                self.io.bind_output(f"present.{layer}.{kind}", *place)

    def _feed(self, name: str, array: np.ndarray) -> None:
        self._kept[name] = array  # alive until it is bound anew
        self.io.bind_input(name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)

    def _forward(self, logits: np.ndarray) -> None:
        self.io.bind_output("logits", "cpu", 0, logits.dtype, logits.shape, logits.ctypes.data)
        try:
            self.session.run_with_iobinding(self.io)
        except Exception as error:
            raise EngineError(f"onnxruntime failed: {error}") from error


def _common_prefix(one: Sequence[int], other: Sequence[int]) -> int:
    length = 0
    for left, right in zip(one, other, strict=False):
        if left != right:
            break
        length += 1
    return length
