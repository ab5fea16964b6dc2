"""generation_config.json for models that come without one."""

from __future__ import annotations

from pathlib import Path

from edgepipe.errors import MissingExtra
from edgepipe.runtimes.llm.spec import DecoderSpec

try:
    from transformers import GenerationConfig, PreTrainedConfig
except ImportError as missing:
    raise MissingExtra(missing.name or "transformers", "export") from missing


def save_generation_config(config: PreTrainedConfig, spec: DecoderSpec, folder: Path) -> None:
    """Write generation_config.json with the special tokens and nothing else."""
    ends = list(spec.eos_token_ids)
    GenerationConfig(
        bos_token_id=spec.bos_token_id,
        eos_token_id=ends[0] if len(ends) == 1 else ends or None,
        pad_token_id=config.pad_token_id,
    ).save_pretrained(folder)
