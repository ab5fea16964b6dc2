"""Rotary position embedding tables, the same for the exporter (in the graph) and the device (longer ones)."""

from __future__ import annotations

import numpy as np

from edgepipe.runtimes.llm.spec import DecoderSpec, RopeSpec


def inverse_frequencies(rope: RopeSpec, head_dim: int) -> np.ndarray:
    """Inverse frequencies of one rotation per pair of channels.

    Returns float64 ``[head_dim / 2]``: ``theta ** (-2i / head_dim)``, scaled as ``rope.scaling`` says.
    The ``llama3`` ramp is that of Llama 3.1's reference code (``apply_scaling``).
    """
    frequencies = rope.theta ** (-np.arange(0, head_dim, 2, dtype=np.float64) / head_dim)
    if rope.scaling == "linear":
        return frequencies / rope.factor
    if rope.scaling == "llama3":
        turns = rope.original_context_length * frequencies / (2 * np.pi)
        keep = (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
        keep = np.clip(keep, 0.0, 1.0)
        return frequencies * (keep + (1.0 - keep) / rope.factor)
    return frequencies


def cos_sin_tables(spec: DecoderSpec, num_positions: int, first: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Cosine and sine of the rotation of every position from ``first`` on.

    Returns two float32 arrays ``[num_positions, head_dim / 2]``, the layout GroupQueryAttention reads.
    """
    positions = np.arange(first, first + num_positions, dtype=np.float64)
    angles = np.outer(positions, inverse_frequencies(spec.rope, spec.head_dim))
    return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
