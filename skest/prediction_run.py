# SPDX-License-Identifier: Apache-2.0
"""One prediction: with a fresh model, or with one that an earlier call has kept."""

import contextlib
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any, TypeAlias

import torch

from skest._random import RunRandom
from skest._resources import IntraOpThreads, threads_for
from skest.checkpoints import Checkpoint
from skest.evaluation import predict_batch, split_rows
from skest.hooks.base import Hook, Run
from skest.inputs.batches import Source
from skest.keys import ModeKeys
from skest.model_builder import ModelBuilder, encoded_batches, restore
from skest.prediction import PredictionModel

__all__ = ["GetModel", "new_prediction_model", "run_prediction"]

#: ``get_model(source, device)`` returns what predicts.
GetModel: TypeAlias = Callable[[Source, torch.device], PredictionModel]

# So many rows of a table to predict are encoded before the next ones.
_ROWS_AT_ONCE = 16_384


def run_prediction(
    builder: ModelBuilder,
    input_fn: Callable[..., Any],
    keys: Sequence[str] | None,
    hooks: list[Hook],
    get_model: GetModel,
    yield_single_examples: bool,
) -> Iterator[dict[str, Any]]:
    """Yield predictions; nothing happens before the first one is asked for.

    Parameters
    ----------
    builder : ModelBuilder
        Opens the input.
    input_fn, yield_single_examples
        See `skest.Estimator.predict`.
    keys : sequence of str or None
        The predictions wanted; None is all.
    hooks : list of Hook
        The caller's.
    get_model : callable
        Called once there is a batch.

    Yields
    ------
    dict of str to ndarray
        Predictions of a row, or of a batch.
    """
    with contextlib.closing(builder.open_source(input_fn, ModeKeys.PREDICT)) as source:
        yield from _predictions(
            builder, source, keys, hooks, get_model, yield_single_examples
        )


def _predictions(
    builder: ModelBuilder,
    source: Source,
    keys: Sequence[str] | None,
    hooks: list[Hook],
    get_model: GetModel,
    yield_single_examples: bool,
) -> Iterator[dict[str, Any]]:
    n_rows = source.rows_per_batch
    if n_rows is None:
        return
    config, device = builder.config, builder.device
    model = get_model(source, device)
    spec = model.spec
    run = Run(spec, config, global_step=model.global_step)
    useful = threads_for(model.n_weights, n_rows, passes=1)
    all_hooks = [*hooks, *spec.prediction_hooks]
    infer = None if all_hooks else model.infer  # hooks may change the network
    for hook in all_hooks:
        hook.begin(run)
    how = {"with_labels": False, "rows_at_once": _ROWS_AT_ONCE}
    for features, _ in encoded_batches(source, spec, device, **how):
        for hook in all_hooks:
            hook.before_step(run)
        # Entered for every batch: nothing may stay set while the caller has control.
        with IntraOpThreads.limited_to(useful, wanted=config.num_threads):
            predictions = predict_batch(spec, features, keys, infer)
        for hook in all_hooks:
            hook.after_step(run, None)
        if yield_single_examples:
            yield from split_rows(predictions)
        else:
            yield predictions
        if run.should_stop:
            break
    for hook in all_hooks:
        hook.end(run)


def new_prediction_model(
    builder: ModelBuilder,
    checkpoint: Checkpoint,
    version: Hashable,
    source: Source,
    device: torch.device,
) -> PredictionModel:
    """Build the model of a checkpoint to predict with.

    One that is the same for every call uses the memory of the checkpoint and may serve
    the next call, on the CPU. No call changes it, so threads may share it.

    Parameters
    ----------
    builder : ModelBuilder
        Builds it.
    checkpoint : Checkpoint
        Its variables.
    version : hashable
        Tells the checkpoint from all others; None if no other call may have the model.
    source : Source
        The input.
    device : torch.device
        Where to predict.

    Returns
    -------
    PredictionModel
        Its `version` is None unless it may serve other calls.
    """
    features, _ = source.first_batch() or (None, None)
    builder.remember(features)
    spec = builder.build(features, None, ModeKeys.PREDICT, RunRandom(0, device))
    network = Run(spec, builder.config).network
    network.eval()
    is_shared = (
        version is not None
        and not spec.prediction_hooks
        and builder.model_fn.is_pure
        and device.type == "cpu"
    )
    execution, step = builder.config.execution, checkpoint.global_step
    model = PredictionModel(version if is_shared else None, step, spec, execution)
    if is_shared:
        checkpoint.lend(network)
    else:
        restore(spec, checkpoint)
    return model
