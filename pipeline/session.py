"""A bundle made ready to decode: engines, caches, policies and drafter, as the options say."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from edgepipe.errors import BundleError, ContextError, RecipeError
from edgepipe.lazy import load
from edgepipe.pipeline.bundle import Bundle
from edgepipe.runtimes.llm.chat_template import ChatTemplate
from edgepipe.runtimes.llm.decoder import CachedDecoder, Decoder
from edgepipe.runtimes.llm.drafters import DRAFTERS
from edgepipe.runtimes.llm.drafters.drafter import Drafter
from edgepipe.runtimes.llm.engines import ENGINES
from edgepipe.runtimes.llm.kv_cache import KVCache
from edgepipe.runtimes.llm.kv_policies import POLICIES
from edgepipe.runtimes.llm.kv_policies.budget import parse_budget
from edgepipe.runtimes.llm.kv_policies.policy import Policy
from edgepipe.runtimes.llm.output_vocabulary import OutputVocabulary
from edgepipe.runtimes.llm.sampling import Sampler, SamplingParams
from edgepipe.runtimes.llm.spec import DecoderSpec
from edgepipe.runtimes.llm.speculative import SpeculativeDecoder
from edgepipe.runtimes.llm.tokenizer import load_tokenizer, require_same_tokenizer


@dataclass(frozen=True)
class CacheOptions:
    """How one decoder's KV cache is kept.

    ``budget`` is text as `parse_budget` reads it and belongs to an evicting ``policy``; ``recent`` and ``normalise``
    are H2O's, ``sinks`` is the window's.
    """

    policy: str = "full"
    budget: str | None = None
    recent: int | None = None
    normalise: bool = True
    sinks: int = 4

    def __post_init__(self) -> None:
        if self.policy not in POLICIES:
            raise RecipeError(f"policy is {self.policy!r}: expected one of {', '.join(POLICIES)}")
        if self.recent is not None and self.policy != "h2o":
            raise RecipeError(f"recent belongs to policy h2o, and the policy is {self.policy}: leave out --recent")
        if (self.policy == "full") != (self.budget is None):
            raise RecipeError(
                f"policy {self.policy} {'takes no' if self.budget else 'needs a'} budget: "
                "give --policy h2o or window together with --budget (tokens, 20% or 64MiB)"
            )


@dataclass(frozen=True)
class DecodeOptions:
    """How text is decoded.

    Attributes:
        engine: a name from `ENGINES`.
        threads: of the engine; None takes the machine's cores.
        chunk: prompt tokens that go through the model at once.
        drafter: a name from `DRAFTERS`, or ``none``.
        gamma: most guesses per round.
        cache: how the target's KV cache is kept.
        draft_cache: how the draft's is; None: in full beside a full one, else in a window of the target's budget, so
            that memory stays constant for both.
        sampling: how tokens are chosen.
    """

    engine: str = "onnx"
    threads: int | None = None
    chunk: int = 256
    drafter: str = "none"
    gamma: int = 4
    cache: CacheOptions = field(default_factory=CacheOptions)
    draft_cache: CacheOptions | None = None
    sampling: SamplingParams = field(default_factory=SamplingParams)

    def __post_init__(self) -> None:
        if self.engine not in ENGINES:
            raise RecipeError(f"engine is {self.engine!r}: expected one of {', '.join(ENGINES)}")
        if self.drafter not in (*DRAFTERS, "none"):
            raise RecipeError(f"drafter is {self.drafter!r}: expected one of {', '.join(DRAFTERS)}, none")
        cores = os.cpu_count() or 1
        for name, most in (("chunk", 2**16), ("gamma", 2**10), ("threads", cores)):
            value = getattr(self, name)
            if value is not None and not 1 <= value <= most:
                why = ", the cores of this machine" if name == "threads" else ""
                raise RecipeError(f"{name} is {value}: expected 1 to {most}{why}")


class Session:
    """The decoders of one bundle; engines are loaded once and shared by all texts."""

    def __init__(self, bundle: Bundle, options: DecodeOptions) -> None:
        """Load the tokenizer; engines are loaded when a text needs them.

        Raises:
            BundleError: the bundle holds no target decoder, or no draft though the drafter is ``model``.
            TokenizerError: draft and target have different tokenizers.
        """
        self.bundle = bundle
        self.options = options
        self.spec = self._spec("target")
        folder = bundle.path(self._component("target")["tokenizer"]).parent
        self.tokenizer = load_tokenizer(folder)
        self.template = ChatTemplate.load(folder)
        if options.drafter == "model":
            draft = bundle.path(self._component("draft")["tokenizer"]).parent
            require_same_tokenizer(self.tokenizer, load_tokenizer(draft))
        self._engines: dict[tuple[str, bool], Decoder] = {}

    def decoder(self, total_tokens: int, stop_tokens: Sequence[str] = ()) -> SpeculativeDecoder:
        """A decoder with fresh caches for one text.

        Args:
            total_tokens: length that the text, prompt included, may reach.
            stop_tokens: tokens, as text or id, that end the text beside the model's own.

        Raises:
            ContextError: that is more than the model's context and no policy evicts.
            RecipeError: the budget is too small, or the tokenizer has no such token.
        """
        options = self.options
        if options.cache.policy == "full" and total_tokens > self.spec.context_length:
            raise ContextError(
                f"{total_tokens} tokens are more than the model's context of {self.spec.context_length}: shorten the "
                "prompt, or set --policy h2o or window with a --budget"
            )
        sampler = Sampler(options.sampling)
        target = self.cached("target", options.cache, total_tokens)
        drafter: Drafter | None = None
        if options.drafter == "model":
            budget = options.cache.budget
            beside = CacheOptions() if budget is None else CacheOptions("window", budget)
            draft = self.cached("draft", options.draft_cache or beside, total_tokens)
            drafter = load(DRAFTERS["model"])(draft, sampler, self.spec.vocab_size, self.output_vocabulary("draft"))
        elif options.drafter != "none":
            drafter = load(DRAFTERS[options.drafter])()
        stops = [*self.spec.eos_token_ids, *map(self._token_id, stop_tokens)]
        return SpeculativeDecoder(target, sampler, drafter, options.gamma, stops)

    def cached(self, component: str, cache: CacheOptions, total_tokens: int) -> CachedDecoder:
        """One component's decoder with a fresh cache, kept as ``cache`` says.

        Raises:
            RecipeError: the cache is larger than this machine's memory, or its budget too small.
        """
        spec = self._spec(component)
        policy = self._policy(spec, cache, total_tokens)
        chunk = min(self.options.chunk, total_tokens)
        widest = max(chunk, self.options.gamma + 1)
        try:
            rows = KVCache(spec, policy.budget, widest, scored=policy.needs_scores)
        except (MemoryError, OverflowError, ValueError) as error:  # numpy has all three for arrays too large
            size = (policy.budget + widest) * spec.kv_bytes_per_token / 2**30
            raise RecipeError(
                f"a KV cache of {policy.budget + widest} tokens takes {size:.1f} GiB, more than there is: "
                "give a smaller --budget, --chunk or --max-new-tokens"
            ) from error
        return CachedDecoder(self._engine(component, policy.needs_scores), rows, policy, chunk)

    def output_vocabulary(self, component: str) -> OutputVocabulary | None:
        """The tokens of a component's logits; None where each token has one.

        Raises:
            BundleError: their file is damaged, or another model's.
        """
        spec = self._spec(component)
        if spec.output_vocab_size is None:
            return None
        return OutputVocabulary.read(self.bundle.path(self._component(component)["output_token_ids"]), spec)

    def _token_id(self, token: str) -> int:
        # What is not UTF-8 on the command line arrives as surrogates, which no token has.
        found = self.tokenizer.id(token.encode(errors="backslashreplace").decode())
        if found is None and token.isdecimal() and int(token) < self.spec.vocab_size:
            found = int(token)
        if found is None:
            raise RecipeError(
                f"no token {token!r}: expected its text as in tokenizer.json, or an id below {self.spec.vocab_size}"
            )
        return found

    def _policy(self, spec: DecoderSpec, cache: CacheOptions, total_tokens: int) -> Policy:
        if cache.budget is None:
            policy: Policy = load(POLICIES["full"])(total_tokens)
            return policy
        budget = parse_budget(cache.budget, total_tokens=total_tokens, bytes_per_token=spec.kv_bytes_per_token)
        newest = self.options.gamma + 1
        if budget < 2 * newest:
            raise RecipeError(f"the budget is {budget} tokens: at gamma {self.options.gamma} give {2 * newest} or more")
        # What the text cannot fill need not be allocated.
        slots = min(budget, max(total_tokens, 2 * newest))
        if cache.policy == "window":
            if not 0 <= cache.sinks <= budget - newest:
                raise RecipeError(f"sinks is {cache.sinks}: expected at most {budget - newest} of a budget of {budget}")
            policy = load(POLICIES["window"])(slots, cache.sinks)
            return policy
        recent = budget // 2 if cache.recent is None else cache.recent
        if not newest <= recent <= budget:
            raise RecipeError(
                f"recent is {recent}: expected at least gamma + 1 = {newest} and at most the budget of {budget}"
            )
        policy = load(POLICIES["h2o"])(slots, min(recent, slots), normalise=cache.normalise)
        return policy

    def _engine(self, component: str, scored: bool) -> Decoder:
        key = (component, scored)
        if key not in self._engines:
            formats = self._component(component)["formats"]
            if self.options.engine not in formats:
                raise BundleError(
                    f"{self.bundle.folder}: {component} was not exported for {self.options.engine}, "
                    f"only for {', '.join(formats)}"
                )
            graph = "scored" if scored else "plain"
            model = formats[self.options.engine].get(graph)
            if model is None:
                raise BundleError(f"{self.bundle.folder}: {component} has no {graph} graph: export the bundle again")
            self._engines[key] = load(ENGINES[self.options.engine])(
                self.bundle.path(model), self._spec(component), threads=self.options.threads, scored=scored
            )
        return self._engines[key]

    def _component(self, name: str) -> dict[str, Any]:
        components: dict[str, Any] = self.bundle.manifest["components"]
        if name not in components:
            hint = "export again with --draft" if name == "draft" else "export again with --target"
            if "vision" in components and name == "target":
                hint = f"give --image FILE, or {hint}"
            raise BundleError(f"{self.bundle.folder} holds no {name} model, only {', '.join(components)}: {hint}")
        component: dict[str, Any] = components[name]
        return component

    def _spec(self, component: str) -> DecoderSpec:
        return DecoderSpec.from_json(self._component(component)["spec"])
