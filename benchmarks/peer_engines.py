"""The engines that `peers.py` compares, each behind the same two calls, and the processes they live in."""

from __future__ import annotations

import ctypes
import json
import multiprocessing
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from time import perf_counter
from typing import Any, Protocol

import numpy as np
from common import installed
from peer_models import silence


@dataclass(frozen=True)
class Decoded:
    """The tokens after the first, the seconds that they took, and the forwards that made them."""

    tokens: list[int]
    seconds: float
    forwards: int


class Engine(Protocol):
    """A loaded model that decodes greedily. ``facts`` is what a reader should know of it."""

    facts: str

    def decode(self, prompt: list[int], count: int) -> Decoded:
        """Prefill, take the first token, and time the ``count`` tokens after it."""


class Edgepipe:
    """The product's own loop. ``gamma`` above 0 switches prompt lookup on."""

    def __init__(self, bundle: Path, threads: int) -> None:
        from edgepipe.pipeline.bundle import Bundle
        from edgepipe.pipeline.session import DecodeOptions, Session

        self.session = Session(Bundle.open(bundle), DecodeOptions(threads=threads))
        self.facts = f"onnxruntime {installed('onnxruntime')}, {_precision(self.session.bundle.manifest)}"

    def decode(self, prompt: list[int], count: int, gamma: int = 0) -> Decoded:
        from edgepipe.pipeline.session import CacheOptions
        from edgepipe.runtimes.llm.drafters.lookup import Lookup
        from edgepipe.runtimes.llm.sampling import Sampler, SamplingParams
        from edgepipe.runtimes.llm.speculative import SpeculativeDecoder

        target = self.session.cached("target", CacheOptions(), len(prompt) + 1 + count)
        decoder = SpeculativeDecoder(target, Sampler(SamplingParams()), Lookup() if gamma else None, gamma)
        decoder.start(prompt)
        tokens: list[int] = []
        forwards = 0
        begin = perf_counter()
        while len(tokens) < count:
            tokens += decoder.step(count - len(tokens)).tokens
            forwards += 1
        return Decoded(tokens, perf_counter() - begin, forwards)


class LlamaCpp:
    """llama.cpp through its C functions: nothing but `llama_decode` and an argmax over the logits.

    Flash attention is on, which was the faster of the two on every machine tried.
    """

    def __init__(self, gguf: Path, threads: int) -> None:
        import llama_cpp as api

        self.api = api
        silence(api)
        api.llama_backend_init()
        self.model = api.llama_model_load_from_file(str(gguf).encode(), api.llama_model_default_params())
        parameters = api.llama_context_default_params()
        parameters.n_ctx = parameters.n_batch = 2048
        parameters.n_threads = parameters.n_threads_batch = threads
        parameters.flash_attn_type = api.LLAMA_FLASH_ATTN_TYPE_ENABLED
        self.context = api.llama_init_from_model(self.model, parameters)
        self.vocab_size = api.llama_vocab_n_tokens(api.llama_model_get_vocab(self.model))
        self.facts = f"llama-cpp-python {installed('llama-cpp-python')}, {gguf.name}, {system_info(api)}"

    def decode(self, prompt: list[int], count: int) -> Decoded:
        self.api.llama_memory_clear(self.api.llama_get_memory(self.context), True)
        token = self._next((ctypes.c_int32 * len(prompt))(*prompt))
        tokens = []
        one = (ctypes.c_int32 * 1)()
        begin = perf_counter()
        for _ in range(count):
            one[0] = token
            token = self._next(one)
            tokens.append(token)
        return Decoded(tokens, perf_counter() - begin, count)

    def _next(self, tokens: ctypes.Array[ctypes.c_int32]) -> int:
        status = self.api.llama_decode(self.context, self.api.llama_batch_get_one(tokens, len(tokens)))
        if status:
            raise RuntimeError(f"llama_decode returned {status}")
        logits = self.api.llama_get_logits_ith(self.context, -1)
        return int(np.ctypeslib.as_array(logits, (self.vocab_size,)).argmax())


class LlamaCppGenerate:
    """llama.cpp as most Python programs use it: `Llama.generate`, greedy."""

    def __init__(self, gguf: Path, threads: int) -> None:
        import llama_cpp

        self.llama = llama_cpp.Llama(
            str(gguf), n_ctx=2048, n_threads=threads, n_threads_batch=threads, flash_attn=True, verbose=False
        )
        self.facts = f"llama-cpp-python {installed('llama-cpp-python')}, {gguf.name}"

    def decode(self, prompt: list[int], count: int) -> Decoded:
        stream = self.llama.generate(prompt, temp=0.0, repeat_penalty=1.0)
        next(stream)
        begin = perf_counter()
        tokens = [next(stream) for _ in range(count)]
        return Decoded(tokens, perf_counter() - begin, count)


class Genai:
    """onnxruntime-genai's own loop over a folder with a genai_config.json."""

    def __init__(self, folder: Path, threads: int) -> None:
        import onnxruntime_genai as genai

        self.genai = genai
        config = genai.Config(str(folder))
        config.overlay(json.dumps({"model": {"decoder": {"session_options": {"intra_op_num_threads": threads}}}}))
        self.model = genai.Model(config)
        self.facts = f"onnxruntime-genai {installed('onnxruntime-genai')}"

    def decode(self, prompt: list[int], count: int) -> Decoded:
        parameters = self.genai.GeneratorParams(self.model)
        parameters.set_search_options(do_sample=False, max_length=len(prompt) + 1 + count)
        generator = self.genai.Generator(self.model, parameters)
        generator.append_tokens(np.array(prompt, np.int32))
        generator.generate_next_token()
        begin = perf_counter()
        for _ in range(count):
            generator.generate_next_token()
        seconds = perf_counter() - begin
        return Decoded(generator.get_sequence(0)[len(prompt) + 1 :].tolist(), seconds, count)


class Child:
    """An engine in a process of its own, so that no engine's threads stand in another's way."""

    def __init__(self, make: Callable[..., Engine], *arguments: Any) -> None:
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, make, arguments), daemon=True)
        self._process.start()
        theirs.close()
        self.facts: str = self._connection.recv()

    def decode(self, prompt: list[int], count: int, **how: Any) -> Decoded:
        """As `Engine.decode`, in the child."""
        self._connection.send((prompt, count, how))
        answer: Decoded = self._connection.recv()
        return answer

    def stop(self) -> None:
        """Let the child end."""
        self._connection.send(None)
        self._process.join()


def _serve(connection: Connection, make: Callable[..., Engine], arguments: tuple[Any, ...]) -> None:
    engine = make(*arguments)
    connection.send(engine.facts)
    while (request := connection.recv()) is not None:
        prompt, count, how = request
        connection.send(engine.decode(prompt, count, **how))


def system_info(api: Any) -> str:
    """The instruction sets that llama.cpp was built with."""
    flags = api.llama_print_system_info().decode().partition(":")[2].split("|")
    return " ".join(flag.partition("=")[0].strip() for flag in flags if flag.strip().endswith("= 1"))


def _precision(manifest: dict[str, Any]) -> str:
    precision = manifest["components"]["target"].get("precision")
    return ", ".join(f"{part} {name}" for part, name in precision.items()) if isinstance(precision, dict) else ""
