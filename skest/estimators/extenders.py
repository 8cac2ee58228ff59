# SPDX-License-Identifier: Apache-2.0
"""`add_metrics`: an Estimator with further metrics."""

import copy
import functools
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from skest.config.run_config import RunConfig
from skest.core.checks import arguments_named
from skest.engine.evaluation import update_metrics
from skest.estimators.estimator import Estimator
from skest.keys import ModeKeys
from skest.spec import EstimatorSpec

_ARGUMENTS = ("features", "labels", "predictions", "config")


def add_metrics(estimator: Estimator, metric_fn: Callable[..., Any]) -> Estimator:
    """Return an Estimator that evaluates further metrics (``tf.estimator.add_metrics``).

    Parameters
    ----------
    estimator : Estimator
        It is left as it is.
    metric_fn : callable
        ``metric_fn(features, labels, predictions, config) -> dict``, of which it takes
        what it names. Called for every batch of an evaluation, it gets the encoded
        features and labels, the predictions by key, and the `RunConfig`. It returns
        tuples ``(metric, *inputs)`` by name. A metric has ``update`` and ``compute``, as
        those of `skest.metrics` and of torchmetrics; a copy of that of the first batch
        lasts for one evaluation and gets ``update(*inputs)`` for every batch.

    Returns
    -------
    Estimator
        It has the model, parameters, settings and checkpoints of `estimator`: what one of
        both trains, the other one evaluates. Where a name is taken by a metric of the
        model, the new one replaces it.

    Raises
    ------
    TypeError
        If `estimator` is none, or `metric_fn` no function; in an evaluation, if it returns
        something else.
    ValueError
        If `metric_fn` requires another argument; in an evaluation, if it wants predictions
        and the model has none, or if it names a metric "loss" or "global_step".

    Examples
    --------
    >>> import numpy as np, torch
    >>> import skest
    >>> from skest.heads import BinaryClassHead
    >>> def model_fn(features, labels, mode):
    ...     network = torch.nn.Linear(1, 1)
    ...     return BinaryClassHead().create_estimator_spec(
    ...         features, mode, network, labels, torch.optim.SGD(network.parameters(), 1.0)
    ...     )
    >>> def metric_fn(labels, predictions):
    ...     error = (predictions["logistic"] - labels).abs()
    ...     return {"mean_error": (skest.metrics.Mean(), error)}
    >>> estimator = skest.add_metrics(skest.Estimator(model_fn), metric_fn)
    >>> X = np.array([[-1.0], [1.0]], dtype=np.float32)
    >>> input_fn = skest.inputs.numpy_input_fn(X, X[:, 0] > 0, num_epochs=9, shuffle=False)
    >>> results = estimator.train(input_fn).evaluate(input_fn)
    >>> 0 < results["mean_error"] < 0.5
    True
    """
    if not isinstance(estimator, Estimator):
        raise TypeError(
            "'estimator' must be a skest.Estimator; got "
            f"{type(estimator).__name__}. Estimators of scikit-learn's kind have one "
            "in 'estimator_' when they are fitted."
        )
    _arguments(metric_fn)
    extended = Estimator(
        # No closure: the Estimator can be pickled if `metric_fn` can.
        functools.partial(_extended_model_fn, estimator.model_fn, metric_fn),
        config=estimator.config,
        params=estimator.params,
        warm_start_from=estimator._warm_start_from,
    )
    # Both see one training, also if its checkpoint is in memory only.
    extended._store = estimator._store
    return extended


def _extended_model_fn(
    model_fn: Callable[..., EstimatorSpec],
    metric_fn: Callable[..., Any],
    features: Any,
    labels: Any,
    mode: str,
    params: dict[str, Any],  # those of the Estimator; `model_fn` has them bound
    config: RunConfig,
) -> EstimatorSpec:
    """Build the model; to evaluate, let it update the metrics of `metric_fn`, too."""
    spec = model_fn(features, labels, mode, config)
    if mode != ModeKeys.EVAL:
        return spec
    names = _arguments(metric_fn)
    # Of one evaluation: the specification is built anew for each, and so are these.
    own, added = dict(spec.eval_metrics or {}), dict[str, Any]()

    def update(
        eval_metrics: dict[str, Any], labels: Any, logits: Any, features: Any
    ) -> None:
        # Into `own`, for what heads add belongs to the model and not to `metric_fn`.
        update_metrics(spec, own, labels, logits, features)
        available = {"features": features, "labels": labels, "config": config}
        if "predictions" in names:  # they may be costly
            available["predictions"] = _predictions(spec, logits)
        returned = metric_fn(**{name: available[name] for name in names})
        for name, (metric, *inputs) in _checked(returned, spec).items():
            if name not in added:  # the user's object stays as it is
                added[name] = copy.deepcopy(metric)
                if hasattr(metric, "reset"):
                    # It may have numbers from another evaluation.
                    added[name].reset()
            added[name].update(*inputs)
        # Where names clash the new metric counts, as in tf.estimator.
        eval_metrics.update({**own, **added})

    # Not by `eval_metrics`: which metrics there are is known with the first batch only.
    return replace(spec, update_metrics=update)


def _arguments(metric_fn: Callable[..., Any]) -> list[str]:
    """Return those of the known arguments that the function takes."""
    if not callable(metric_fn):
        raise TypeError(
            f"'metric_fn' must be a function; got {type(metric_fn).__name__}."
        )
    named, unknown = arguments_named(metric_fn, _ARGUMENTS)
    if unknown:
        raise ValueError(
            f"metric_fn requires {', '.join(map(repr, unknown))}, but only "
            f"{', '.join(_ARGUMENTS)} are passed (those that it names). Bind others "
            "with functools.partial."
        )
    return named


def _predictions(spec: EstimatorSpec, logits: Any) -> Any:
    if spec.predictions is None:
        raise ValueError(
            "metric_fn takes 'predictions', but the EstimatorSpec of mode 'eval' has "
            "none. Let model_fn fill them in this mode, too."
        )
    return spec.predictions(logits)


def _checked(returned: Any, spec: EstimatorSpec) -> Mapping[str, tuple[Any, ...]]:
    """Return what a metric_fn returned, if all of it can be used."""
    if not isinstance(returned, Mapping):
        raise TypeError(
            "metric_fn must return a dictionary of tuples (metric, *inputs); got "
            f"{type(returned).__name__}."
        )
    for name, value in returned.items():
        if not isinstance(value, tuple) or not value:
            raise TypeError(
                f"metric_fn must return a tuple (metric, *inputs) for {name!r}, such as "
                f"(Mean(), labels); got {type(value).__name__}."
            )
    # The specification knows which names and which objects can be metrics.
    replace(spec, eval_metrics={name: value[0] for name, value in returned.items()})
    return returned
