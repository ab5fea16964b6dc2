"""Rewrites an exported torch graph, so that its image operations convert to TFLite's NHWC without transposes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx

_aten = torch.ops.aten
_TO_NHWC, _TO_NCHW = [0, 2, 3, 1], [0, 3, 1, 2]


def prefer_channels_last(module: fx.GraphModule) -> None:
    """Rewrite ``module``, a graph of aten operations on ``[1, C, H, W]``, in place; it computes the same.

    litert-torch lays convolutions and pools out as NHWC, but leaves padding, means over rows and columns, and
    flattening as they are, between two transposes.
    """
    for node in list(module.graph.nodes):
        rewrite = _REWRITES.get(node.target)
        if rewrite is not None and _rank(node.args[0]) == 4:
            with module.graph.inserting_before(node):
                replacement = rewrite(module, node)
            if replacement is not None:
                replacement.meta.update(node.meta)
                node.replace_all_uses_with(replacement)
                module.graph.erase_node(node)
    module.graph.eliminate_dead_code()
    module.recompile()


def _pad(module: fx.GraphModule, node: fx.Node) -> fx.Node | None:
    arguments: tuple[Any, ...] = node.args
    image, pads, *how = arguments
    if len(pads) > 4 or (how and isinstance(how[0], str) and how[0] != "constant"):
        return None
    channels_last = module.graph.call_function(_aten.permute.default, (image, _TO_NHWC))
    padding: Any = node.target
    padded = module.graph.call_function(padding, (channels_last, [0, 0, *pads], *how), dict(node.kwargs))
    return module.graph.call_function(_aten.permute.default, (padded, _TO_NCHW))


def _mean(module: fx.GraphModule, node: fx.Node) -> fx.Node | None:
    arguments: tuple[Any, ...] = node.args
    image, axes, *rest = arguments
    if sorted(axis % 4 for axis in axes) != [2, 3]:
        return None
    pooled = module.graph.call_function(_aten.adaptive_avg_pool2d.default, (image, [1, 1]))
    keeps_axes = bool(rest and rest[0])
    return pooled if keeps_axes else module.graph.call_function(_aten.flatten.using_ints, (pooled, 1))


def _flatten(module: fx.GraphModule, node: fx.Node) -> fx.Node | None:
    """Flatten rows, columns, channels in this order, and let the columns of the linear layers follow."""
    image: Any = node.args[0]
    shape = tuple(image.meta["val"].shape)
    if tuple(node.meta["val"].shape) != (shape[0], shape[1] * shape[2] * shape[3]) or shape[2] * shape[3] == 1:
        return None
    linears = _linear_users(node)
    if linears is None:
        return None
    for linear in linears:
        parameter: Any = linear.args[1]
        weights = _parameter(module, parameter)
        name = f"{parameter.target}_channels_last".replace(".", "_")
        reordered = weights.detach().reshape(-1, *shape[1:]).permute(0, 2, 3, 1).reshape(weights.shape)
        module.register_parameter(name, torch.nn.Parameter(reordered.contiguous(), requires_grad=False))
        with module.graph.inserting_before(linear):
            linear.update_arg(1, module.graph.get_attr(name))
    channels_last = module.graph.call_function(_aten.permute.default, (image, _TO_NHWC))
    return module.graph.call_function(_aten.reshape.default, (channels_last, [shape[0], -1]))


def _linear_users(node: fx.Node) -> list[fx.Node] | None:
    """The linear layers that alone read ``node``, maybe through dropouts; None if something else reads it."""
    linears: list[fx.Node] = []
    for user in node.users:
        parameter: Any = user.args[1] if len(user.args) > 1 else None
        if user.target is _aten.linear.default and user.args[0] is node and parameter.op == "get_attr":
            linears.append(user)
        elif user.target is _aten.dropout.default:
            below = _linear_users(user)
            if below is None:
                return None
            linears += below
        else:
            return None
    return linears


def _parameter(module: fx.GraphModule, node: fx.Node) -> torch.Tensor:
    path, _, name = str(node.target).rpartition(".")
    return getattr(module.get_submodule(path), name)


def _rank(node: fx.node.Argument) -> int | None:
    value = node.meta.get("val") if isinstance(node, fx.Node) else None
    return value.dim() if isinstance(value, torch.Tensor) else None


_REWRITES: dict[object, Callable[[fx.GraphModule, fx.Node], fx.Node | None]] = {
    _aten.pad.default: _pad,
    _aten.constant_pad_nd.default: _pad,
    _aten.mean.dim: _mean,
    _aten.flatten.using_ints: _flatten,
    _aten.view.default: _flatten,
    _aten.reshape.default: _flatten,
}
