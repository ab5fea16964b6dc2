"""A small builder of ONNX graphs: names its own values, collects nodes and initializers."""

from __future__ import annotations

from typing import Any

import numpy as np

from edgepipe.errors import MissingExtra
from edgepipe.exporters.llm.onnx_weights import StoredTensor

try:
    from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper
except ImportError as missing:
    raise MissingExtra("onnx", "export") from missing

MICROSOFT = "com.microsoft"
# The newest pair that onnxruntime 1.29 runs on every provider.
OPSET = 21
IR_VERSION = 10

Shape = tuple[int | str, ...]


class GraphBuilder:
    """One graph under construction; ``data_location`` is the file that stored tensors refer to."""

    def __init__(self, name: str, data_location: str) -> None:
        self.name = name
        self.data_location = data_location
        self._nodes: list[NodeProto] = []
        self._initializers: dict[str, TensorProto] = {}
        self._inputs: list[ValueInfoProto] = []
        self._outputs: list[ValueInfoProto] = []

    def input(self, name: str, dtype: type[np.generic], shape: Shape) -> str:
        """Declare an input of the graph; an initializer of the same name makes it optional."""
        self._inputs.append(_value_info(name, dtype, shape))
        return name

    def output(self, name: str, dtype: type[np.generic], shape: Shape) -> None:
        """Declare an output, which some node has to compute under this name."""
        self._outputs.append(_value_info(name, dtype, shape))

    def constant(self, name: str, values: Any, dtype: type[np.generic] = np.int64) -> str:
        """A small initializer kept inside the graph's own file."""
        if name not in self._initializers:
            self._initializers[name] = numpy_helper.from_array(np.asarray(values, dtype), name)
        return name

    def stored(self, name: str, tensor: StoredTensor, shape: tuple[int, ...] | None = None) -> str:
        """An initializer in the data file, seen as ``shape`` if given."""
        self._initializers[name] = tensor.proto(name, self.data_location, shape)
        return name

    def node(
        self,
        op_type: str,
        inputs: list[str],
        name: str,
        outputs: list[str] | None = None,
        domain: str = "",
        **attributes: Any,
    ) -> str:
        """Append a node; its first output's name (``name`` itself unless ``outputs`` are given) is returned.

        An input that is "" is left out.
        """
        outputs = outputs or [name]
        while not inputs[-1]:
            inputs = inputs[:-1]
        self._nodes.append(helper.make_node(op_type, inputs, outputs, f"node.{name}", domain=domain, **attributes))
        return outputs[0]

    def model(self, metadata: dict[str, str]) -> ModelProto:
        """The finished model; ``metadata`` becomes its metadata_props."""
        graph = helper.make_graph(
            self._nodes, self.name, self._inputs, self._outputs, initializer=list(self._initializers.values())
        )
        model = helper.make_model(
            graph,
            producer_name="edgepipe",
            ir_version=IR_VERSION,
            opset_imports=[helper.make_opsetid("", OPSET), helper.make_opsetid(MICROSOFT, 1)],
        )
        helper.set_model_props(model, metadata)
        return model


def _value_info(name: str, dtype: type[np.generic], shape: Shape) -> ValueInfoProto:
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), shape)
