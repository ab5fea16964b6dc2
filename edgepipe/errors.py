"""Every error a user can meet, as one tree.

    EdgepipeError                 exit code 1   anything a user can mend
    ├── MissingExtra              exit code 1   an optional package is not installed
    ├── UnsupportedModel          exit code 1   an architecture, layout or quantisation we cannot export
    ├── DoesNotFit                exit code 1   a model needs more memory than a board has
    ├── BundleError               exit code 1   a bundle is missing, damaged, truncated or of another version
    ├── RecipeError               exit code 1   a configuration key or value is wrong
    ├── TokenizerError            exit code 1   a tokenizer cannot be read, or draft and target disagree
    ├── ContextError              exit code 1   a prompt is empty, or longer than the model or the budget allows
    ├── ImageError                exit code 1   an image cannot be read, or is not of the size and kind a model takes
    ├── EngineError               exit code 1   the inference engine refused the model or returned NaN
    ├── ValidationFailed          exit code 3   the exported model strays too far from its source
    ├── DeviceUnreachable         exit code 4   a device does not answer
    ├── DeviceError               exit code 4   a device answers, and lacks what is asked of it
    └── MeasurementUntrustworthy  exit code 5   a gate of the measurement failed

A message is one line: what was found, what was expected, what to type.
"""

from __future__ import annotations


class EdgepipeError(Exception):
    """Base of all errors shown to the user as one line, without a traceback."""

    exit_code = 1


class MissingExtra(EdgepipeError):
    """A package outside the base install is needed.

    >>> str(MissingExtra("transformers", "export"))
    "transformers is not installed: pip install 'edgepipe[export]'"
    """

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(f"{package} is not installed: pip install 'edgepipe[{extra}]'")


class UnsupportedModel(EdgepipeError):
    """The model cannot be exported."""


class DoesNotFit(EdgepipeError):
    """No plan brings the model into the memory of the board."""


class BundleError(EdgepipeError):
    """The bundle is missing, damaged, truncated, or of another schema version."""


class RecipeError(EdgepipeError):
    """A recipe has an unknown key or a value out of range."""


class TokenizerError(EdgepipeError):
    """A tokenizer cannot be read, or two tokenizers that must agree do not."""


class ContextError(EdgepipeError):
    """A prompt is empty or does not fit."""


class ImageError(EdgepipeError):
    """An image cannot be read, or does not fit the model."""


class EngineError(EdgepipeError):
    """The inference engine refused the model, or its output is unusable."""


class ValidationFailed(EdgepipeError):
    """The exported model strays from its source by more than the recipe allows."""

    exit_code = 3


class DeviceUnreachable(EdgepipeError):
    """A device does not answer."""

    exit_code = 4


class DeviceError(EdgepipeError):
    """A device answers but cannot do it: its disk is full, its Python too old, a process there was killed."""

    exit_code = 4


class MeasurementUntrustworthy(EdgepipeError):
    """A gate of a measurement failed; the report is still written."""

    exit_code = 5


class EdgepipeWarning(UserWarning):
    """Something went wrong that the work goes on without; one line, as an error's message."""
