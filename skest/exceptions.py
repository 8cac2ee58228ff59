# SPDX-License-Identifier: Apache-2.0
"""Errors that skest adds to the built-in ones.

``ValueError`` and ``TypeError`` are raised for wrong arguments, as everywhere in
scikit-learn. The classes here exist where a caller may want to react to one cause.
"""

from sklearn.exceptions import NotFittedError

__all__ = [
    "CheckpointMismatchError",
    "CorruptCheckpointError",
    "ExportError",
    "ModelDirInUseError",
    "NanLossDuringTrainingError",
    "NotFittedError",
]


class CheckpointMismatchError(ValueError):
    """A checkpoint whose variables do not fit the network that should load it."""


class CorruptCheckpointError(ValueError):
    """A checkpoint on disk that is incomplete or not what it says it is."""


class ExportError(ValueError):
    """A model, or a part of it, that an exported graph cannot express."""


class ModelDirInUseError(RuntimeError):
    """Another training is at work in the same ``model_dir``."""


class NanLossDuringTrainingError(RuntimeError):
    """The loss became NaN (``tf.estimator.NanLossDuringTrainingError``)."""
