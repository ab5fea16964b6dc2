"""A bundle made ready to decode: engines, caches, policies and drafter, as the options say."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Any

from edgepipe.errors import BundleError, ContextError, RecipeError
from edgepipe.lazy import load
from edgepipe.pipeline.bundle import Bundle
from edgepipe.pipeline.decode_options import CacheOptions, DecodeOptions
from edgepipe.pipeline.decoder_engines import files_of, first_installed, open_decoder, require_width
from edgepipe.pipeline.device_costs import ACCEPTANCE_ROUNDS, measure_acceptance, measured_costs, time_costs
from edgepipe.pipeline.prompt_text import chat_prompts
from edgepipe.runtimes.llm.chat_template import ChatTemplate
from edgepipe.runtimes.llm.costs import Costs, MeasuredCosts
from edgepipe.runtimes.llm.decoder import CachedDecoder, Decoder
from edgepipe.runtimes.llm.drafters import DRAFTERS
from edgepipe.runtimes.llm.drafters.drafter import Drafter
from edgepipe.runtimes.llm.drafters.head import HeadDrafter
from edgepipe.runtimes.llm.gamma import MOST_GUESSES, AutoGamma, Gamma
from edgepipe.runtimes.llm.kv_cache import KVCache
from edgepipe.runtimes.llm.kv_policies import POLICIES
from edgepipe.runtimes.llm.kv_policies.budget import parse_budget
from edgepipe.runtimes.llm.kv_policies.policy import Policy
from edgepipe.runtimes.llm.output_vocabulary import OutputVocabulary
from edgepipe.runtimes.llm.sampling import Sampler
from edgepipe.runtimes.llm.spec import DecoderSpec
from edgepipe.runtimes.llm.speculative import SpeculativeDecoder
from edgepipe.runtimes.llm.tokenizer import load_tokenizer, require_same_tokenizer

# Guesses a round while acceptance is measured.
MEASURED_GAMMA = 3

# Tokens of a text from one eviction to the next: as many as a round of most guesses adds.
EVICT_EVERY = MOST_GUESSES + 1

# Costs are measured for texts up to these lengths; attention's share of a forward grows with the text.
_LENGTHS = (512, 2048, 8192, 32768)


class Session:
    """The decoders of one bundle; engines are loaded once and shared by all texts."""

    def __init__(self, bundle: Bundle, options: DecodeOptions, tell: Callable[[str], None] = lambda step: None) -> None:
        """Load the tokenizer; engines are loaded when a text needs them. ``tell`` is called before what takes long.

        Raises:
            BundleError: the bundle holds no target decoder, or no draft though the drafter is ``model``, or has no
                files for the engine.
            RecipeError: the engine's files have no forward of so many guesses.
            TokenizerError: draft and target have different tokenizers.
        """
        self.bundle = bundle
        self.engine = options.engine or first_installed(self._component("target"))
        self.options = options = replace(options, engine=self.engine)
        self._files = files_of(bundle, "target", self.engine)
        if options.drafters and options.gamma != "auto":
            require_width(self._files, options.gamma, f"{bundle.folder} in {self.engine}")
        self._tell = tell
        self.spec = self._spec("target")
        folder = bundle.path(self._component("target")["tokenizer"]).parent
        self.tokenizer = load_tokenizer(folder)
        self.template = ChatTemplate.load(folder)
        if "model" in options.drafters:
            draft = bundle.path(self._component("draft")["tokenizer"]).parent
            require_same_tokenizer(self.tokenizer, load_tokenizer(draft))
        self._engines: dict[tuple[str, bool], Decoder] = {}
        self._costs: dict[int, Costs] = {}

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
        drafters = [self._drafter(name, total_tokens, target, sampler) for name in options.drafters]
        most = self.most_guesses(total_tokens)
        gamma: int | Gamma = most
        if drafters and options.gamma == "auto":
            costs = self.costs(total_tokens)
            gamma = AutoGamma(costs, most)
            for drafter in drafters:
                drafter.reach = costs.reach(drafter.name)
        stops = [*self.spec.eos_token_ids, *map(self._token_id, stop_tokens)]
        return SpeculativeDecoder(target, sampler, drafters, gamma, stops)

    def most_guesses(self, total_tokens: int) -> int:
        """The most guesses per round, for which all caches need room; ``auto`` stays within their budgets.

        A budget holds twice the newest tokens, those of a round, and the window of H2O holds them, so that no round
        evicts what it still needs.
        """
        options = self.options
        if options.gamma != "auto":
            return options.gamma
        if not options.drafters:
            return 0
        most = min(MOST_GUESSES, self._files["widths"][-1] - 1) if "widths" in self._files else MOST_GUESSES
        caches = [("target", options.cache)]
        if "model" in options.drafters:
            caches.append(("draft", options.beside_target))
        if "sparse" in options.drafters:
            caches.append(("target", options.own_window))
        for component, cache in caches:
            if cache.budget is not None:
                budget = self._budget(self._spec(component), cache.budget, total_tokens)
                unevictable = budget - cache.sinks if cache.policy == "window" else cache.recent or budget
                most = min(most, budget // 2 - 1, unevictable - 1)
        return max(0, most)

    def _drafter(self, name: str, total_tokens: int, target: CachedDecoder, sampler: Sampler) -> Drafter:
        drafter: Drafter
        if name == "model":
            draft = self.cached("draft", self.options.beside_target, total_tokens)
            vocabulary = self.output_vocabulary("draft")
            if self._component("draft")["kind"] == "head":
                drafter = HeadDrafter(draft, target, sampler, vocabulary)
            else:
                drafter = load(DRAFTERS[name])(draft, sampler, self.spec.vocab_size, vocabulary)
        elif name == "sparse":
            window = self._policy(self.spec, self.options.own_window, total_tokens)
            drafter = load(DRAFTERS[name])(target, window, self.most_guesses(total_tokens), sampler)
        else:
            drafter = load(DRAFTERS[name])()
        drafter.drawn = self.options.sampling.seed is None
        return drafter

    def costs(self, total_tokens: int) -> Costs:
        """The costs of rounds in a text of about this length, which all such texts of the session correct."""
        options = self.options
        length = next(length for length in _LENGTHS if total_tokens <= length or length == _LENGTHS[-1])
        if length not in self._costs:
            facts = {
                "bundle_id": self.bundle.manifest["bundle_id"],
                "length": length,
                "decode": {name: value for name, value in asdict(options).items() if name != "sampling"},
            }
            measured = measured_costs(facts, partial(self._measure_costs, length))
            self._costs[length] = Costs(measured, widths=self._files.get("widths"))
        return self._costs[length]

    def _measure_costs(self, length: int) -> MeasuredCosts:
        """Costs in texts of up to ``length``, with caches and a sampler of their own."""
        self._tell("measuring, this once, what guesses cost on this device")
        total = min(length // 2 + 64, self.spec.context_length)
        sampler = Sampler(self.options.sampling)
        target = self.cached("target", self.options.cache, total)
        drafters = [self._drafter(name, total, target, sampler) for name in self.options.drafters]
        costs = time_costs(target, drafters, min(length // 2, target.policy.budget))
        gamma = min(MEASURED_GAMMA, self.most_guesses(total))
        room = total - ACCEPTANCE_ROUNDS * (gamma + 1)
        texts = [text for text in chat_prompts(self.tokenizer, self.template) if len(text) <= room]
        return replace(costs, acceptance=measure_acceptance(target, sampler, drafters, texts, gamma))

    def cached(self, component: str, cache: CacheOptions, total_tokens: int) -> CachedDecoder:
        """One component's decoder with a fresh cache, kept as ``cache`` says.

        Raises:
            RecipeError: it is larger than this machine's memory, or its budget too small.
        """
        spec = self._spec(component)
        policy = self._policy(spec, cache, total_tokens)
        decoder = self._engine(component, policy.needs_scores)
        chunk = min(self.options.chunk, total_tokens)
        widest = self.most_guesses(total_tokens) + 1
        # A quarter of the budget at most is held beside it until the next eviction.
        evict_every = None if cache.budget is None else min(EVICT_EVERY, max(1, policy.budget // 4))
        if cache.budget is not None:  # else a text's chunks are within its room
            widest = max(chunk, widest, evict_every or 0)
        try:
            rows = KVCache(spec, policy.budget, widest, scored=policy.needs_scores)
        except (MemoryError, OverflowError, ValueError) as error:  # numpy has all three for arrays too large
            size = (policy.budget + widest) * spec.kv_bytes_per_token / 2**30
            raise RecipeError(
                f"a KV cache of {policy.budget + widest} tokens takes {size:.1f} GiB, more than there is: "
                "give a smaller --budget, --chunk or --max-new-tokens"
            ) from error
        return CachedDecoder(decoder, rows, policy, chunk, evict_every if component == "target" else None)

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
        budget = self._budget(spec, cache.budget, total_tokens)
        newest = self.most_guesses(total_tokens) + 1
        if budget < 2 * newest:
            flag = "--budget" if cache == self.options.cache else f"--draft-policy {cache.policy} --draft-budget"
            raise RecipeError(
                f"the budget is {budget} tokens: at gamma {self.options.gamma} give {flag} {2 * newest} or more"
            )
        # What the text cannot fill need not be allocated.
        slots = min(budget, max(total_tokens, 2 * newest))
        if cache.policy == "window":
            if not 0 <= cache.sinks <= budget - newest:
                if cache == self.options.cache:
                    expected = f"expected at most {budget - newest} of a budget of {budget}"
                    raise RecipeError(f"sinks is {cache.sinks}: {expected}")
                flag = "--draft-budget" if cache == self.options.draft_cache else "--budget"
                raise RecipeError(
                    f"the draft's window of {budget} tokens begins with {cache.sinks} sinks: at gamma "
                    f"{self.options.gamma} give {flag} {cache.sinks + newest} or more, or --drafter lookup"
                )
            policy = load(POLICIES["window"])(slots, cache.sinks)
            return policy
        recent = budget // 2 if cache.recent is None else cache.recent
        if not newest <= recent <= budget:
            raise RecipeError(f"recent is {recent}: expected {newest}, the tokens of a round, to {budget}, the budget")
        policy = load(POLICIES["h2o"])(slots, min(recent, slots), normalise=cache.normalise)
        return policy

    @staticmethod
    def _budget(spec: DecoderSpec, budget: str, total_tokens: int) -> int:
        return parse_budget(budget, total_tokens=total_tokens, bytes_per_token=spec.kv_bytes_per_token)

    def _engine(self, component: str, scored: bool) -> Decoder:
        key = (component, scored)
        if key not in self._engines:
            self._engines[key] = open_decoder(self.bundle, component, self.engine, self.options.threads, scored)
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
