# SPDX-License-Identifier: Apache-2.0
"""The loops of evaluation and prediction, with hooks around them."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from skest.hooks.base import Hook, Run
from skest.keys import MetricKeys
from skest.spec import EstimatorSpec
from skest.training import scalar_loss

__all__ = [
    "Infer",
    "as_arrays",
    "evaluate_loop",
    "evaluated",
    "predict_batch",
    "predicted",
    "split_rows",
    "update_metrics",
]

#: ``infer(data, option)`` does what `evaluated` or `predicted` does for a specification.
Infer: TypeAlias = Callable[[Any, Any], Any]


def evaluate_loop(
    run: Run,
    batches: Iterable[tuple[Any, Any]],
    hooks: Sequence[Hook] = (),
    steps: int | None = None,
    infer: Infer | None = None,
) -> dict[str, Any]:
    """Evaluate the network of a run; it is left in the mode that it was in.

    Parameters
    ----------
    run : Run
        Gives the specification and the global step.
    batches : iterable of (features, labels)
        Encoded batches on the device of the network.
    hooks : sequence of Hook, default=()
        Called in this order.
    steps : int, default=None
        Batches to evaluate; None takes all.
    infer : callable, default=None
        Does what `evaluated` does, in another way; see `skest.execution`.

    Returns
    -------
    dict of str to float, or to ndarray where a metric computes several numbers
        Metrics by name; "loss", the unweighted mean of the losses of the batches as
        TensorFlow has it; and "global_step".

    Raises
    ------
    ValueError
        If there is no batch.
    TypeError
        If a metric computes no numbers.
    """
    was_training = run.network.training
    run.network.eval()
    metrics = dict(run.spec.eval_metrics or {})
    losses: list[Tensor] = []
    infer = infer or partial(evaluated, run.spec)
    for hook in hooks:
        hook.begin(run)
    try:
        for features, labels in islice(batches, steps):
            for hook in hooks:
                hook.before_step(run)
            with torch.no_grad():
                logits, run.loss = infer((features, labels), None)
                update_metrics(run.spec, metrics, labels, logits, features)
            losses.append(run.loss)
            for hook in hooks:
                hook.after_step(run, run.loss)
            if run.should_stop:
                break
    finally:
        run.network.train(was_training)
    if not losses:
        raise ValueError("The input of evaluate has no batch; at least one is needed.")
    for hook in hooks:
        hook.end(run)
    results = {name: _result(name, metric) for name, metric in metrics.items()}
    results[MetricKeys.LOSS] = torch.stack(losses).double().mean().item()
    results[MetricKeys.GLOBAL_STEP] = run.global_step
    return dict(sorted(results.items()))


@torch.no_grad()
def evaluated(
    spec: EstimatorSpec, batch: tuple[Any, Any], option: None = None
) -> tuple[Any, Tensor]:
    """Return logits and loss of an encoded batch of features and labels."""
    if spec.network is None or spec.loss is None:
        raise ValueError("Evaluation needs an EstimatorSpec of mode 'eval'.")
    features, labels = batch
    logits = spec.network(features)
    return logits, scalar_loss(spec.loss(labels, logits, features))


@torch.no_grad()
def predicted(
    spec: EstimatorSpec, features: Any, keys: Sequence[str] | None
) -> Mapping[str, Any]:
    """Return predictions for an encoded batch: those of `keys`, or all that there are."""
    if spec.network is None or spec.predictions is None:
        raise ValueError("Prediction needs an EstimatorSpec of mode 'infer'.")
    asked = {} if keys is None or not spec.predicts_by_key else {"keys": keys}
    return spec.predictions(spec.network(features), **asked)


def predict_batch(
    spec: EstimatorSpec,
    features: Any,
    keys: Sequence[str] | None,
    infer: Infer | None = None,
) -> dict[str, Any]:
    """Return the predictions for one encoded batch as arrays.

    Parameters
    ----------
    spec : EstimatorSpec
        Model of mode PREDICT, its network in evaluation mode.
    features : tensors
        One encoded batch on the device of the network.
    keys : sequence of str or None
        The predictions asked for; None is all.
    infer : callable, default=None
        Does what `predicted` does, in another way; see `skest.execution`.

    Returns
    -------
    dict of str to ndarray
        Rows along the first dimension.

    Raises
    ------
    ValueError
        If a key is not among the predictions.
    TypeError
        If the predictions are no dictionary.
    """
    infer = infer or partial(predicted, spec)
    return as_arrays(infer(features, keys), keys)


def as_arrays(predictions: Any, keys: Sequence[str] | None) -> dict[str, Any]:
    """Return predictions as arrays, those of `keys` or all; errors as `predict_batch`."""
    if not isinstance(predictions, dict | Mapping):
        raise TypeError(
            "'predictions' of an EstimatorSpec must return a dictionary; "
            f"got {type(predictions).__name__}. Give it a name: "
            'lambda logits: {"logits": logits}.'
        )
    arrays = {name: _as_array(value) for name, value in predictions.items()}
    if keys is None:
        return arrays
    unknown = [key for key in keys if key not in arrays]
    if unknown:
        raise ValueError(
            f"'predict_keys' names {', '.join(map(repr, unknown))}, but the predictions "
            f"are {', '.join(map(repr, arrays))}."
        )
    return {key: arrays[key] for key in keys}


def update_metrics(
    spec: EstimatorSpec,
    metrics: dict[str, Any],
    labels: Any,
    logits: Any,
    features: Any,
) -> None:
    """Add a batch to metrics as a specification says.

    Parameters
    ----------
    spec : EstimatorSpec
        Its ``update_metrics`` is called if there is one.
    metrics : dict of str to metric
        Those of the specification; ``update_metrics`` may replace and add some.
    labels, logits, features : tensors or dictionaries of tensors
        The encoded batch, and what the network made of it.
    """
    if spec.update_metrics is not None:
        spec.update_metrics(metrics, labels, logits, features)
        return
    for metric in metrics.values():
        if isinstance(metric, tuple):
            metric, inputs = metric
            metric.update(*inputs(labels, logits, features))
        else:
            metric.update(logits, labels)


def split_rows(predictions: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the predictions of one row after the other.

    Raises
    ------
    ValueError
        If the values differ in their number of rows.
    """
    shapes = {name: np.shape(value) for name, value in predictions.items()}
    counts = {shape[:1] for shape in shapes.values()}
    if len(counts) > 1 or () in counts:
        raise ValueError(
            "Predictions can only be split into rows if all have the same number of "
            f"rows; got the shapes {shapes}. Pass yield_single_examples=False."
        )
    for i in range(*next(iter(counts), (0,))):
        yield {name: value[i] for name, value in predictions.items()}


def _result(name: str, metric: Any) -> Any:
    computed = (metric[0] if isinstance(metric, tuple) else metric).compute()
    try:
        value = _as_array(computed)
    except ValueError:  # a list of arrays that differ in shape
        value = np.asarray(None)
    if value.dtype.kind not in "biuf":
        raise TypeError(
            f"The metric {name!r} must compute a number or an array of numbers; got "
            f"{type(computed).__name__}. Make a metric of each number."
        )
    return value if value.ndim else float(value)


def _as_array(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach().cpu().numpy()
    return np.asarray(value)
