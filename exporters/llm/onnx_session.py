"""Runs an exported graph on the workstation, by hand: for validation and golden outputs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from edgepipe.runtimes.llm.spec import DecoderSpec


class OnnxSession:
    """One sequence over one graph; keys and values are written in place into a buffer of ``capacity`` slots.

    ``spec`` is read from the graph's metadata. ``length`` is the number of tokens fed so far; set it back to forget
    the last ones.
    """

    def __init__(self, model: Path, capacity: int, threads: int = 0) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.log_severity_level = 3  # the default inputs draw a warning each
        self._session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        metadata = self._session.get_modelmeta().custom_metadata_map
        self.spec = spec = DecoderSpec.from_json(json.loads(metadata["edgepipe.spec"]))
        self._binding = self._session.io_binding()
        self._outputs = [output.name for output in self._session.get_outputs() if "present" not in output.name]
        # The binding keeps no reference to the arrays it reads.
        self._bound: dict[str, np.ndarray] = {}
        self._ones = np.ones((1, capacity), np.int64)
        self.length = 0
        for index in range(spec.num_layers):
            for part in ("key", "value"):
                buffer = np.zeros((1, spec.num_kv_heads, capacity, spec.head_dim), np.float32)
                past = self._bind(f"past_key_values.{index}.{part}", buffer)
                self._binding.bind_ortvalue_output(f"present.{index}.{part}", past)

    def forward(
        self, ids: Sequence[int], positions: Sequence[int] | None = None, logits_from: int = 0, **tables: np.ndarray
    ) -> dict[str, np.ndarray]:
        """Feed ``ids``; returns the graph's outputs without the cache: ``logits`` ``[1, S - logits_from, V]``, ....

        ``positions`` are the tokens' own (their slots unless given); ``tables`` replaces ``cos_cache``, ``sin_cache``.
        """
        total = self.length + len(ids)
        self._bind("input_ids", np.array([ids], np.int64))
        self._bind("attention_mask", self._ones[:, :total])
        self._bind("position_ids", np.array([range(self.length, total) if positions is None else positions], np.int64))
        self._bind("logits_from", np.array([logits_from], np.int64))
        for name, table in tables.items():
            self._bind(name, table)
        for name in self._outputs:
            self._binding.bind_output(name)  # anew each time: its shape changes
        self._session.run_with_iobinding(self._binding)
        self.length = total
        values = self._binding.get_outputs()[-len(self._outputs) :]
        return {name: value.numpy() for name, value in zip(self._outputs, values, strict=True)}

    def chunks(self, ids: Sequence[int], chunk: int) -> Iterator[np.ndarray]:
        """Logits ``[<= chunk, V]`` of a whole sequence, fed from the start a chunk at a time."""
        self.length = 0
        for start in range(0, len(ids), chunk):
            yield self.forward(ids[start : start + chunk])["logits"][0]

    def logits(self, ids: Sequence[int], chunk: int) -> np.ndarray:
        """Logits ``[S, V]`` of a whole sequence."""
        return np.concatenate(list(self.chunks(ids, chunk)))

    def _bind(self, name: str, array: np.ndarray) -> object:
        import onnxruntime

        value = onnxruntime.OrtValue.ortvalue_from_numpy(array)
        self._bound[name] = array
        self._binding.bind_ortvalue_input(name, value)
        return value
