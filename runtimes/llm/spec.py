"""What a decoder-only language model looks like: the numbers that both exporters and engines need."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, fields
from reprlib import repr as shown
from typing import Any

from edgepipe.errors import BundleError

# Far beyond any model: a larger number is damage, and would take all memory before it was noticed.
LARGEST: Mapping[str, int] = {
    "num_layers": 2**14,
    "hidden_size": 2**20,
    "intermediate_size": 2**24,
    "num_heads": 2**14,
    "num_kv_heads": 2**14,
    "head_dim": 2**14,
    "vocab_size": 2**28,
    "context_length": 2**22,
}
SCALINGS = ("default", "linear", "llama3")


@dataclass(frozen=True)
class RopeSpec:
    """Rotary position embedding (Su et al. 2021) and its context scaling.

    ``scaling`` is ``"default"``, ``"linear"`` (all frequencies divided by ``factor``) or ``"llama3"``
    (low frequencies divided, high kept, a smooth ramp between).
    """

    theta: float
    scaling: str = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_context_length: int = 8192

    def fault(self) -> str | None:
        """The first number that no rotary embedding has, and what was expected; None when all is well."""
        for name in ("theta", "factor", "low_freq_factor", "high_freq_factor"):
            if not _is_finite(value := getattr(self, name)) or value <= 0:
                return f"{name} is {shown(value)}: expected a number above 0"
        if self.scaling not in SCALINGS:
            return f"scaling is {shown(self.scaling)}: expected one of {', '.join(SCALINGS)}"
        if self.scaling == "llama3" and self.low_freq_factor >= self.high_freq_factor:
            return f"low_freq_factor is {self.low_freq_factor}: expected less than high_freq_factor"
        return _size_fault("original_context_length", self.original_context_length, LARGEST["context_length"])


@dataclass(frozen=True)
class DecoderSpec:
    """Shape of a Llama-like decoder. Sizes are in elements, ``context_length`` in tokens.

    ``output_vocab_size`` is the number of logits where that is not ``vocab_size``: a draft's head may be trimmed.
    """

    architecture: str
    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    context_length: int
    rms_norm_eps: float
    rope: RopeSpec
    tied_embeddings: bool
    qkv_bias: bool = False
    o_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()
    output_vocab_size: int | None = None

    @property
    def num_logits(self) -> int:
        """Logits of one token."""
        return self.vocab_size if self.output_vocab_size is None else self.output_vocab_size

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of float32 keys and values that one token takes over all layers."""
        return self.num_layers * 2 * self.num_kv_heads * self.head_dim * 4

    def fault(self) -> str | None:
        """The first value that no decoder has, and what was expected; None when all is well."""
        for name, largest in LARGEST.items():
            if problem := _size_fault(name, getattr(self, name), largest):
                return problem
        if problem := _size_fault("output_vocab_size", self.num_logits, self.vocab_size):
            return problem
        if self.num_heads % self.num_kv_heads:
            return f"num_heads is {self.num_heads}: expected a multiple of num_kv_heads, {self.num_kv_heads}"
        if self.head_dim % 2:
            return f"head_dim is {self.head_dim}: expected an even number"
        if not _is_finite(self.rms_norm_eps) or not 0 <= self.rms_norm_eps < 1:
            return f"rms_norm_eps is {shown(self.rms_norm_eps)}: expected a number from 0 to 1"
        if problem := self.rope.fault():
            return f"rope.{problem}"
        for name in ("tied_embeddings", "qkv_bias", "o_bias", "mlp_bias", "qk_norm"):
            if type(getattr(self, name)) is not bool:
                return f"{name} is {shown(getattr(self, name))}: expected true or false"
        if not isinstance(self.architecture, str):
            return f"architecture is {shown(self.architecture)}: expected a text"
        bos = () if self.bos_token_id is None else (self.bos_token_id,)
        for name, ids in (("bos_token_id", bos), ("eos_token_ids", self.eos_token_ids)):
            for id in ids:
                if type(id) is not int or not 0 <= id < self.vocab_size:
                    return f"{name} has {shown(id)}: expected token ids from 0 to {self.vocab_size - 1}"
        return None

    def to_json(self) -> dict[str, Any]:
        """A JSON-ready dict; `from_json` reads it back."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: object) -> DecoderSpec:
        """Inverse of `to_json`.

        Raises:
            BundleError: a key is missing or unknown, or a value is of a wrong type or out of its range.
        """
        given = dict(_table(cls, values, ""))
        given["rope"] = RopeSpec(**_table(RopeSpec, given["rope"], "rope."))
        ends = given.get("eos_token_ids", ())
        if not isinstance(ends, (list, tuple)):
            raise BundleError(f"eos_token_ids is {shown(ends)}: expected a list of token ids")
        spec = cls(**{**given, "eos_token_ids": tuple(ends)})
        if problem := spec.fault():
            raise BundleError(problem)
        return spec


def _table(kind: type[DecoderSpec] | type[RopeSpec], values: object, prefix: str) -> Mapping[str, Any]:
    """``values`` when its keys are the fields of ``kind``; ``prefix`` is the dotted name of the table in errors."""
    if not isinstance(values, Mapping):
        raise BundleError(f"{prefix.rstrip('.') or 'it'} is {shown(values)}: expected a table")
    known = {field.name: field.default is MISSING for field in fields(kind)}
    for name in values:
        if name not in known:
            raise BundleError(
                f"unknown key {prefix}{shown(name)[1:-1]}: the bundle is of a newer edgepipe, "
                "pip install --upgrade edgepipe"
            )
    for name, required in known.items():
        if required and name not in values:
            raise BundleError(f"{prefix}{name} is missing")
    return values


def _size_fault(name: str, value: object, largest: int) -> str | None:
    if type(value) is int and 1 <= value <= largest:
        return None
    return f"{name} is {shown(value)}: expected a whole number from 1 to {largest}"


def _is_finite(value: object) -> bool:
    return type(value) in (int, float) and math.isfinite(value)  # type: ignore[arg-type]
