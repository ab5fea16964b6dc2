"""An exported program's graph as a module that calls aten's operators one by one, without generated code."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from edgepipe.errors import UnsupportedModel
from edgepipe.exporters.vision.program_archive import SCALAR_TYPES

Values = Mapping[str, Any]

# What image networks are made of. Others could read files, or take any memory; a trailing underscore (in place) is
# left out.
OPERATORS = frozenset({
    "_adaptive_avg_pool2d", "_native_batch_norm_legit_no_training", "_softmax", "_to_copy", "_unsafe_view",
    "adaptive_avg_pool2d", "adaptive_max_pool2d", "add", "addmm", "alias", "avg_pool2d", "batch_norm", "cat",
    "chunk", "clamp", "clamp_max", "clamp_min", "clone", "concat", "constant_pad_nd", "contiguous", "conv2d",
    "convolution", "detach", "div", "dropout", "expand", "flatten", "hardsigmoid", "hardswish", "hardtanh",
    "lift_fresh_copy", "linear", "matmul", "max_pool2d", "max_pool2d_with_indices", "mean", "mm", "mul", "neg",
    "pad", "permute", "relu", "relu6", "reshape", "rsqrt", "select", "sigmoid", "silu", "slice", "softmax", "split",
    "split_with_sizes", "sqrt", "squeeze", "sub", "sum", "t", "to", "transpose", "unsqueeze", "upsample_nearest2d",
    "view",
})  # fmt: skip
_MEMORY_FORMATS = {1: torch.contiguous_format, 2: torch.channels_last, 4: torch.preserve_format}
# As many as the reader of TFLite takes.
MAX_NODES = 10_000
_KEYWORD = 2  # The kind of an argument that is given by name.


class AtenProgram(nn.Module):
    """Runs the nodes of ``graph``, the JSON of torch's schema 8, in their order.

    ``constants``: weights by the names of the graph's inputs; ``image`` is the name of the one that is left, ``output``
    of the one that is returned. ``name`` stands in messages.

    Raises:
        UnsupportedModel: an operator is none of ``OPERATORS``, trains, or has a size that is not fixed.
    """

    def __init__(
        self, graph: dict[str, Any], constants: Mapping[str, torch.Tensor], image: str, output: str, name: str
    ) -> None:
        super().__init__()
        self._buffer_names = {constant: f"constant_{index}" for index, constant in enumerate(constants)}
        for constant, values in constants.items():
            self.register_buffer(self._buffer_names[constant], values)
        self._image, self._output = image, output
        if len(graph["nodes"]) > MAX_NODES:
            raise UnsupportedModel(f"{name} has {len(graph['nodes'])} operations: expected at most {MAX_NODES}")
        self._calls = [_Call(node, name) for node in graph["nodes"]]
        known = {*constants, image}
        for call in self._calls:
            if unknown := call.reads - known:
                raise ValueError(f"{sorted(unknown)[0][:80]!r} is read before it is written")
            known.update(call.outputs)
        if output not in known:
            raise ValueError(f"nothing writes the output {output[:80]!r}")

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        values: dict[str, Any] = {name: getattr(self, buffer) for name, buffer in self._buffer_names.items()}
        values[self._image] = image
        for call in self._calls:
            values.update(call(values))
        result: torch.Tensor = values[self._output]
        return result


class _Call:
    """One node: its operator, what it is given, and the names of what it returns."""

    def __init__(self, node: dict[str, Any], name: str) -> None:
        self._operator = _operator(node["target"], name)
        self.reads: set[str] = set()
        self._positional: list[Callable[[Values], Any]] = []
        self._keywords: dict[str, Callable[[Values], Any]] = {}
        for given in node["inputs"]:
            if given["name"] in ("train", "training") and given["arg"].get("as_bool"):
                raise UnsupportedModel(f"{name} was exported in training mode: call model.eval() before torch.export")
            argument = self._argument(given["arg"], f"{name}: {node['target']}")
            if given.get("kind") == _KEYWORD:
                self._keywords[given["name"]] = argument
            else:
                self._positional.append(argument)
        (*outputs,) = node["outputs"]
        self._returns_list = len(outputs) != 1 or "as_tensors" in outputs[0]
        self.outputs: list[str] = [
            tensor["name"] for given in outputs for tensor in (given.get("as_tensors") or [given["as_tensor"]])
        ]

    def __call__(self, values: Values) -> dict[str, Any]:
        returned = self._operator(
            *(argument(values) for argument in self._positional),
            **{name: argument(values) for name, argument in self._keywords.items()},
        )
        return dict(zip(self.outputs, returned if self._returns_list else [returned], strict=False))

    def _argument(self, given: dict[str, Any], here: str) -> Callable[[Values], Any]:
        ((kind, content),) = given.items()
        match kind, content:
            case "as_tensor", {"name": str(tensor)}:
                self.reads.add(tensor)
                return lambda values: values[tensor]
            case "as_tensors" | "as_sym_ints" | "as_optional_tensors", [*entries]:
                inner = "as_tensor" if kind == "as_tensors" else None
                parts = [self._argument({inner: entry} if inner else entry, here) for entry in entries]
                return lambda values: [part(values) for part in parts]
            case "as_sym_int" | "as_optional_tensor", dict():
                return self._argument(content, here)
            case "as_none", _:
                constant: Any = None
            case "as_int" | "as_ints" | "as_bool" | "as_bools" | "as_string", _:
                constant = content
            case "as_float", _:
                constant = float(content)  # Infinity is text.
            case "as_floats", _:
                constant = [float(value) for value in content]
            case "as_scalar_type", _:
                constant = SCALAR_TYPES[content]
            case "as_memory_format", _:
                constant = _MEMORY_FORMATS[content]
            case "as_layout", _:
                constant = torch.strided
            case "as_device", _:
                constant = torch.device("cpu")
            case (("as_name" | "as_expr"), _):
                raise UnsupportedModel(f"{here} has a size that is not fixed: export it without dynamic_shapes")
            case _:
                raise UnsupportedModel(f"{here} takes an argument {str(kind)[:40]!r}: expected tensors and numbers")
        return lambda values: constant


def _operator(target: str, name: str) -> Callable[..., Any]:
    path, _, overload = target.rpartition(".")
    namespace, _, operator = path.rpartition(".")
    if namespace != "torch.ops.aten" or operator.removesuffix("_") not in OPERATORS:
        raise UnsupportedModel(
            f"{name} has the operation {target[:80]!r}: expected one of aten's {', '.join(sorted(OPERATORS))}"
        )
    packet = getattr(torch.ops.aten, operator)
    if overload not in packet.overloads():
        raise UnsupportedModel(f"{name} has the operation {target[:80]!r}, which this torch does not know")
    found: Callable[..., Any] = getattr(packet, overload)
    return found
