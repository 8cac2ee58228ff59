# SPDX-License-Identifier: Apache-2.0
"""What an estimator predicts together with those of its folds, and its metrics."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from operator import attrgetter
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from skest.adapters.features import WEIGHT_KEY, Rows
from skest.adapters.fit import core_as_fitted
from skest.canned.dnn import mean_logits
from skest.core.resources import IntraOpThreads
from skest.engine.evaluation import as_arrays
from skest.engine.model import pure_model_fn
from skest.estimators.estimator import Estimator
from skest.heads.base import Head
from skest.inputs.array_dataset import ArrayDataset
from skest.spec import EstimatorSpec

# Key of the mean of the logits, beside the raw features.
_LOGITS_KEY = "__logits__"


def predictions(
    model: Any,
    features: Any,
    keys: Sequence[Any] | None = None,
    core_of: Callable[[Any], Estimator] = attrgetter("estimator_"),
) -> dict[Any, np.ndarray]:
    """Return the predictions of a fitted estimator, and of those of its folds with it.

    Parameters
    ----------
    model : SkestEstimator
        Fitted.
    features : TableColumns
        Raw, and checked.
    keys : sequence or None
        Predictions of the head that are wanted; None is all.
    core_of : callable
        Gives the core that computes for an estimator.
    """
    if not model.fold_estimators_:
        size = model._predict_batch_size
        return core_of(model).predict_table(features, keys, batch_size=size)
    # Several threads that wait for each other take milliseconds for a row.
    with IntraOpThreads.limited_to(1, wanted="auto"):
        logits = _mean_logits(model, features, core_of)
        return as_arrays(model._target.head(None).predictions(logits, keys), keys)


def _mean_logits(
    model: Any, features: Any, core_of: Callable[[Any], Estimator]
) -> Tensor:
    """Return the logits that stand for the mean of the predictions of all."""
    keys, size = model._target.validation_keys, model._predict_batch_size
    each = []
    for member in (model, *model.fold_estimators_):
        found = core_of(member).predict_table(features, keys, batch_size=size)
        # Of several heads, as their logits lie in the network.
        each.append(np.concatenate([found[key] for key in keys], axis=-1))
    return mean_logits(model._target.head(None), torch.from_numpy(np.stack(each)))


def evaluation(model: Any, rows: Rows) -> dict[str, float]:
    """Return the metrics of a fitted estimator; with its folds, those of their mean."""
    core, weighted = model.estimator_, rows.weight is not None
    features = rows.with_normalised_weight()
    if model.fold_estimators_:
        logits = _mean_logits(model, rows.features, attrgetter("estimator_"))
        features = features | {_LOGITS_KEY: logits.numpy()}
        head = model._target.head(WEIGHT_KEY if weighted else None)
        # Nothing is left to compute but the metrics, and nothing to write.
        config = core.config.replace(model_dir=None, device="cpu")
        evaluator = Estimator(partial(_given_logits, head=head), config=config)
        evaluator.checkpoint = replace(core.checkpoint, variables={}, optimizer={})
    else:
        # Another core, for the head has a weight column only if there are weights.
        evaluator = core_as_fitted(model, core.config, core.checkpoint, weighted)
    size = model._predict_batch_size
    dataset = ArrayDataset(features, rows.labels, batch_size=size)
    return evaluator.evaluate(lambda: dataset)


@pure_model_fn
def _given_logits(
    features: Any, labels: Any, mode: str, *, head: Head
) -> EstimatorSpec:
    """Return a model whose logits are among the features."""
    spec = head.create_estimator_spec(
        features, mode, _GivenLogits(), labels, encode=lambda _: {}
    )
    own: Any = spec.encode

    def encode(features: Any) -> dict[str, Any]:
        # A `loss_fn` that takes features is not to see the logits among them.
        others = {k: column for k, column in features.items() if k != _LOGITS_KEY}
        return {**own(others), _LOGITS_KEY: torch.as_tensor(features[_LOGITS_KEY])}

    return replace(spec, encode=encode)


class _GivenLogits(nn.Module):
    def forward(self, features: dict[str, Tensor]) -> Tensor:
        return features[_LOGITS_KEY]
