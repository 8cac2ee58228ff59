# SPDX-License-Identifier: Apache-2.0
"""`PredictionModel`: a model that predicts, which may serve several calls."""

from collections.abc import Hashable
from functools import partial
from typing import Any

from skest._resources import dense_size
from skest.evaluation import Infer, predicted
from skest.execution.choice import make_inference
from skest.spec import EstimatorSpec

__all__ = ["PredictionModel"]


class PredictionModel:
    """A model of mode PREDICT with the variables of a checkpoint.

    Nobody changes it, so threads may share it.

    Parameters
    ----------
    version : hashable
        Tells the checkpoint from all others; None for one that is not the latest.
    global_step : int
        That of the checkpoint.
    spec : EstimatorSpec
        The model, its network in evaluation mode.
    execution : {"auto", "eager", "graph", "inductor"}
        See `skest.RunConfig`.

    Attributes
    ----------
    n_weights : int
        `skest._resources.dense_size` of the network.
    infer : callable
        ``infer(features, keys)`` does what `skest.evaluation.predicted` does.
    """

    def __init__(
        self, version: Hashable, global_step: int, spec: EstimatorSpec, execution: str
    ) -> None:
        self.version = version
        self.global_step = global_step
        self.spec = spec
        self.n_weights = 0 if spec.network is None else dense_size(spec.network)
        self.infer: Infer = make_inference(
            execution, spec, partial(predicted, spec), spec.predictions
        )

    def itself(self, *needed_to_build: Any) -> "PredictionModel":
        """Return the model; it is built already."""
        return self
