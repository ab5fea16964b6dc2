"""What a decoder-only language model looks like: the numbers that both exporters and engines need."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


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


@dataclass(frozen=True)
class DecoderSpec:
    """Shape of a Llama-like decoder. Sizes are in elements, ``context_length`` in tokens."""

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

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of float32 keys and values that one token takes over all layers."""
        return self.num_layers * 2 * self.num_kv_heads * self.head_dim * 4

    def to_json(self) -> dict[str, Any]:
        """A JSON-ready dict; `from_json` reads it back."""
        return asdict(self)

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> DecoderSpec:
        """Inverse of `to_json`."""
        return cls(**{**fields, "rope": RopeSpec(**fields["rope"]), "eos_token_ids": tuple(fields["eos_token_ids"])})
