# SPDX-License-Identifier: Apache-2.0
"""Errors that skest adds to the built-in ones.

``ValueError`` and ``TypeError`` are raised for wrong arguments, as everywhere in
scikit-learn. The classes here exist where a caller may want to react to one cause.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sklearn.exceptions import NotFittedError

__all__ = [
    "ArtifactError",
    "CheckpointMismatchError",
    "CorruptCheckpointError",
    "ExportError",
    "ModelDirInUseError",
    "NanLossDuringTrainingError",
    "NotFittedError",
    "PeerLostError",
    "TaskFailedError",
]


class ArtifactError(ValueError):
    """An exported model that is damaged, or not what an export of skest may be."""


class CheckpointMismatchError(ValueError):
    """A checkpoint whose variables do not fit the network that should load it."""


class CorruptCheckpointError(ValueError):
    """A checkpoint on disk that is incomplete or not what it says it is."""


class ExportError(ValueError):
    """A model that can't be exported, or whose export does not give what it gives."""


class ModelDirInUseError(RuntimeError):
    """Another training is at work in the same ``model_dir``."""


class NanLossDuringTrainingError(RuntimeError):
    """The loss became NaN (``tf.estimator.NanLossDuringTrainingError``)."""


class PeerLostError(RuntimeError):
    """Another process, without which a training can't go on, ended or is silent."""


class TaskFailedError(RuntimeError):
    """A process of a training died more often than it may be restarted."""


def __getattr__(name: str) -> Any:
    # Serving an exported model needs these errors, but no scikit-learn.
    if name == "NotFittedError":
        from sklearn.exceptions import NotFittedError

        return NotFittedError
    raise AttributeError(f"module 'skest.exceptions' has no attribute {name!r}")
