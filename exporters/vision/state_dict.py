"""Weights of torch models: state dicts from files."""

from __future__ import annotations

import pickle
from pathlib import Path

import torch
from torch import nn

from edgepipe.errors import EdgepipeError, UnsupportedModel
from edgepipe.exporters.sources.weights import one_line


def read_weights(path: Path) -> dict[str, torch.Tensor]:
    """A state dict from ``.safetensors``, or from what ``torch.save`` wrote; code in pickles is never run.

    Raises:
        EdgepipeError: no such file.
        UnsupportedModel: it is damaged, or no state dict.
    """
    if not path.is_file():
        raise EdgepipeError(f"no file {path}: expected a state dict, .pt or .safetensors")
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            return load_file(path)
        state = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise UnsupportedModel(f"{path} holds more than tensors, or is damaged: expected a state dict") from error
    except Exception as error:  # unpickling can raise almost anything
        raise UnsupportedModel(f"{path} cannot be read as a state dict ({one_line(error)})") from error
    if not isinstance(state, dict) or not all(isinstance(value, torch.Tensor) for value in state.values()):
        raise UnsupportedModel(f"{path} holds no state dict: expected what torch.save(model.state_dict(), path) writes")
    return state


def load_weights(model: nn.Module, state: dict[str, torch.Tensor], path: Path) -> None:
    """Put a state dict into a model.

    Raises:
        UnsupportedModel: it is another model's.
    """
    expected = model.state_dict()
    absent, foreign = sorted(expected.keys() - state.keys()), sorted(state.keys() - expected.keys())
    if absent or foreign:
        found = [f"no {absent[0]}" if absent else "", f"a {foreign[0]} that the model has not" if foreign else ""]
        raise UnsupportedModel(f"{path} has {' and '.join(filter(None, found))}: expected the weights of this model")
    for name, values in expected.items():
        if state[name].shape != values.shape:
            raise UnsupportedModel(
                f"{path}: {name} has shape {tuple(state[name].shape)}, expected {tuple(values.shape)}"
            )
    model.load_state_dict(state)
