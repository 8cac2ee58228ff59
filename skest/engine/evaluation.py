# SPDX-License-Identifier: Apache-2.0
"""One evaluation: of a checkpoint, with a fresh model, and the record of it."""

import contextlib
import copy
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from skest.checkpoints.checkpoint import Checkpoint
from skest.checkpoints.store import eval_dir_of, write_eval_result
from skest.core.random import RunRandom
from skest.core.resources import IntraOpThreads, dense_size, threads_for
from skest.engine.loop import scalar_loss
from skest.engine.model import ModelBuilder, encoded_batches, restore
from skest.engine.recorded.choice import make_inference
from skest.hooks.base import Hook, Run
from skest.inputs.array_dataset import count_rows
from skest.inputs.batches import Source
from skest.keys import MetricKeys, ModeKeys
from skest.spec import EstimatorSpec

_logger = logging.getLogger("skest")


def run_evaluation(
    builder: ModelBuilder,
    source: Source,
    checkpoint: Checkpoint,
    hooks: list[Hook],
    steps: int | None = None,
    name: str | None = None,
    eval_dir: Path | None = None,
) -> dict[str, Any]:
    """Build the model, evaluate it with the variables of a checkpoint, note the result.

    Parameters
    ----------
    builder : ModelBuilder
        Builds the model.
    source : Source
        The input.
    checkpoint : Checkpoint
        What is evaluated.
    hooks : list of Hook
        The caller's.
    steps : int, default=None
        Batches to evaluate; None takes all.
    name : str, default=None
        Of the evaluation, for the log.
    eval_dir : Path, default=None
        Where the result is recorded; None records nothing.

    Returns
    -------
    dict of str to float or ndarray
        See `skest.engine.evaluation.evaluate_loop`.

    Raises
    ------
    ValueError
        If the input has no batch, or no end, where nothing ends the evaluation.
    """
    first = source.first_batch()
    if first is None:
        raise ValueError("The input of evaluate has no batch; it needs at least one.")
    builder.remember(first[0])
    device = builder.device
    # That of the training: the variables come from the checkpoint, but a network may
    # draw tensors that are none.
    seed = builder.config.random_seed or 0
    spec = builder.build(*first, ModeKeys.EVAL, RunRandom(seed, device))
    all_hooks = [*hooks, *spec.evaluation_hooks]
    # A hook may know when to stop.
    if steps is None and source.is_endless and not all_hooks:
        raise ValueError(
            "The input of evaluate has no end, and 'steps' is None, so that it would "
            "never be finished. Let 'input_fn' give the data once (num_epochs=1, no "
            "repeat()), or say how many batches to take in 'steps'."
        )
    restore(spec, checkpoint)
    run = Run(
        spec,
        builder.config,
        global_step=checkpoint.global_step,
        model_dir=builder.model_dir,
        summary_dir=eval_dir,
    )
    n_rows = count_rows(first[0], "features")
    useful = threads_for(dense_size(run.network), n_rows, passes=1)
    with (
        contextlib.closing(run),
        IntraOpThreads.limited_to(useful, wanted=builder.config.num_threads),
    ):
        batches = encoded_batches(source, spec, device)
        infer: Infer = partial(evaluated, spec)
        if not all_hooks:  # which may change the network
            execution = builder.config.execution
            infer = make_inference(execution, spec, infer, spec.loss)
        results = evaluate_loop(run, batches, all_hooks, steps, infer)
        _logger.info("Evaluation%s: %s", f" {name!r}" if name else "", results)
        record_evaluation(run, eval_dir, results)
    return results


#: ``infer(data, option)`` does what `evaluated` or `predicted` does for a specification.
Infer: TypeAlias = Callable[[Any, Any], Any]


def evaluate_loop(
    run: Run,
    batches: Iterable[tuple[Any, Any]],
    hooks: Sequence[Hook] = (),
    steps: int | None = None,
    infer: Infer | None = None,
) -> dict[str, Any]:
    """Evaluate the network of a run.

    Parameters
    ----------
    run : Run
        Gives the specification and the global step.
    batches : iterable of (features, labels)
        Encoded batches on the device of the network, at least one.
    hooks : sequence of Hook, default=()
        Called in this order.
    steps : int, default=None
        Batches to evaluate; None takes all.
    infer : callable, default=None
        Does what `evaluated` does, in another way; see `skest.engine.recorded`.

    Returns
    -------
    dict of str to float, or to ndarray where a metric computes several numbers
        Metrics by name; "loss", the unweighted mean of the losses of the batches as
        TensorFlow has it; and "global_step".

    Raises
    ------
    TypeError
        If a metric computes no numbers.
    """
    run.network.eval()
    # Those that model_fn did not make would go on from call to call.
    metrics = {
        name: (_own(of[0]), *of[1:]) if isinstance(of, tuple) else _own(of)
        for name, of in (run.spec.eval_metrics or {}).items()
    }
    losses: list[Tensor] = []
    infer = infer or partial(evaluated, run.spec)
    for hook in hooks:
        hook.begin(run)
    for features, labels in islice(batches, steps):
        for hook in hooks:
            hook.before_step(run)
        with torch.no_grad():
            logits, run.loss = infer((features, labels), None)
            update_metrics(run.spec, metrics, labels, logits, features)
        # Still a tensor: to ask for its number would wait for a GPU every batch.
        losses.append(run.loss)
        for hook in hooks:
            hook.after_step(run, run.loss)
        if run.should_stop:
            break
    # Not after an error, as in training.
    for hook in hooks:
        hook.end(run)
    results = {name: _computed(name, metric) for name, metric in metrics.items()}
    # The mean over batches, as in tf.estimator; `average_loss` is that over examples.
    results[MetricKeys.LOSS] = torch.stack(losses).double().mean().item()
    results[MetricKeys.GLOBAL_STEP] = run.global_step
    # Sorted by name, as tf.estimator returns them.
    return dict(sorted(results.items()))


@torch.no_grad()
def evaluated(
    spec: EstimatorSpec, batch: tuple[Any, Any], option: None = None
) -> tuple[Any, Tensor]:
    """Return logits and loss of an encoded batch of features and labels."""
    loss_of: Any = spec.loss
    features, labels = batch
    logits = spec.network(features)
    return logits, scalar_loss(loss_of(labels, logits, features))


@torch.no_grad()
def predicted(
    spec: EstimatorSpec, features: Any, keys: Sequence[str] | None
) -> Mapping[str, Any]:
    """Return predictions for an encoded batch: those of `keys`, or all that there are."""
    predictions_of: Any = spec.predictions
    # Heads compute only what is asked for; a function of the user's takes logits alone.
    asked = {} if keys is None or not spec.predicts_by_key else {"keys": keys}
    return predictions_of(spec.network(features), **asked)


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
        Does what `predicted` does, in another way; see `skest.engine.recorded`.

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
    if not isinstance(predictions, Mapping):
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
        # A pair says what its metric is given; a metric alone takes logits and labels.
        if isinstance(metric, tuple):
            metric, inputs = metric
            given = inputs(labels, logits, features)
            if not isinstance(given, tuple | list):
                raise TypeError(
                    f"The inputs of {type(metric).__name__} in 'eval_metrics' must be a "
                    f"tuple; got {type(given).__name__}."
                )
            metric.update(*given)
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
    # No predictions at all have no rows; `counts` holds one shape like (n_rows,).
    for i in range(*next(iter(counts), (0,))):
        yield {name: value[i] for name, value in predictions.items()}


def _computed(name: str, metric: Any) -> Any:
    computed = (metric[0] if isinstance(metric, tuple) else metric).compute()
    try:
        value = _as_array(computed)
    except ValueError:  # a list of arrays that differ in shape
        value = np.asarray(None)
    # A boolean counts as 0 or 1.
    if value.dtype.kind not in "biuf":
        raise TypeError(
            f"The metric {name!r} must compute a number or an array of numbers; got "
            f"{type(computed).__name__}. Make a metric of each number."
        )
    return value if value.ndim else float(value)


def _own(metric: Any) -> Any:
    try:
        return copy.deepcopy(metric)
    except TypeError:  # as one with a lock
        return metric


def _as_array(value: Any) -> Any:
    if isinstance(value, Tensor):
        value = value.detach().cpu()
        # NumPy has no bfloat16.
        return (value.float() if value.dtype == torch.bfloat16 else value).numpy()
    return np.asarray(value)


def record_evaluation(
    run: Run, eval_dir: Path | None, results: Mapping[str, Any]
) -> None:
    """Record the result of an evaluation in a directory, and as summaries.

    One that can't be recorded, in a read-only ``model_dir``, is logged and no error.

    Parameters
    ----------
    run : Run
        The evaluation; its writer is that of `eval_dir`.
    eval_dir : Path or None
        As ``Estimator.eval_dir`` returns it; None records nothing.
    results : dict of str to float or ndarray
        As ``Estimator.evaluate`` returns them; only numbers are recorded.

    Raises
    ------
    ValueError
        If the configuration keeps the best checkpoints by a metric that is no number
        among them.
    """
    if eval_dir is None:
        return
    rule = run.config.keep_best
    # Before anything is written: the best checkpoints would be kept by nothing, untold.
    if rule is not None and eval_dir.name == eval_dir_of(Path(), rule.eval_name).name:
        rule.check(results)
    results = {name: value for name, value in results.items() if np.ndim(value) == 0}
    try:
        write_eval_result(eval_dir, results)
        if run.config.save_summary_steps and run.summary.is_enabled:
            run.summary.scalars(
                {n: v for n, v in results.items() if n != MetricKeys.GLOBAL_STEP}
            )
    # What was computed is returned all the same.
    except OSError as error:
        _logger.warning("The result is not recorded in %s: %s", eval_dir, error)
