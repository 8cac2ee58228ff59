# SPDX-License-Identifier: Apache-2.0
"""One prediction: with a fresh model, or with one that an earlier call has kept."""

import contextlib
import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from torch import Tensor

from skest.checkpoints.checkpoint import Checkpoint, load_variables
from skest.core.random import RunRandom
from skest.core.resources import IntraOpThreads, dense_size, threads_for
from skest.engine.evaluation import (
    Infer,
    as_arrays,
    predict_batch,
    predicted,
    split_rows,
)
from skest.engine.model import ModelBuilder, encoded_batches, restore
from skest.engine.recorded.choice import make_inference
from skest.feature_columns.encoding import Arithmetic, Encoding
from skest.hooks.base import Hook, Run
from skest.inputs.array_dataset import count_rows
from skest.inputs.batches import Source
from skest.keys import ModeKeys
from skest.spec import EstimatorSpec


class PredictionModel:
    """A model of mode PREDICT with the variables of a checkpoint.

    Nobody changes it, so threads may share it.

    Parameters
    ----------
    version : hashable
        Tells the checkpoint from all others; None if the model serves one call only.
    global_step : int
        That of the checkpoint.
    spec : EstimatorSpec
        The model, its network in evaluation mode.
    execution : {"auto", "eager", "graph"}
        See `skest.RunConfig`.

    Attributes
    ----------
    n_weights : int
        `skest.core.resources.dense_size` of the network.
    infer : callable
        ``infer(features, keys)`` does what `skest.engine.evaluation.predicted` does.
    infer_raw : callable or None
        If features need no more than arithmetic, ``infer_raw(tensors, keys)`` does so for
        what `Arithmetic.tensors` returned, and adds a sum that is finite only if all
        encoded numbers are.
    """

    def __init__(
        self, version: Hashable, global_step: int, spec: EstimatorSpec, execution: str
    ) -> None:
        self.version = version
        self.global_step = global_step
        self.spec = spec
        self.n_weights = dense_size(spec.network)
        self.infer: Infer = make_inference(
            execution, spec, partial(predicted, spec), spec.predictions
        )
        encode = spec.encode
        self._arithmetic = encode.arithmetic() if isinstance(encode, Encoding) else None
        self.infer_raw: Infer | None = None
        if self._arithmetic is not None:
            # A method would keep this model, and with it the network, alive.
            from_raw = partial(_predicted_from_raw, spec, self._arithmetic)
            self.infer_raw = make_inference(execution, spec, from_raw, spec.predictions)

    def itself(self, *needed_to_build: Any) -> "PredictionModel":
        """Return the model; it is built already."""
        return self

    def predict_table(
        self,
        features: Any,
        keys: Sequence[str] | None,
        most_rows: int,
        num_threads: int | Literal["auto"],
    ) -> dict[str, Any] | None:
        """Return the predictions for a table that is one batch, without a loop around it.

        Parameters
        ----------
        features : dict of arrays, DataFrame or array
            Raw features.
        keys : sequence of str or None
            The predictions asked for; None is all.
        most_rows : int
            Rows of a batch.
        num_threads : int or "auto"
            See `skest.RunConfig`.

        Returns
        -------
        dict of str to ndarray, or None
            None if the rows are more than one batch, or nothing encodes them.
        """
        n_rows = count_rows(features, "features")
        # An empty table goes the other way, which knows what no batch means.
        if self.spec.encode is None or not 0 < n_rows <= most_rows:
            return None
        useful = threads_for(self.n_weights, n_rows, passes=1)
        with IntraOpThreads.limited_to(useful, wanted=num_threads):
            if self._arithmetic is not None and self.infer_raw is not None:
                raw = self._arithmetic.tensors(features)
                if raw is not None:
                    predictions, total = self.infer_raw(raw, keys)
                    if math.isfinite(total):
                        return as_arrays(predictions, keys)
            # Other kinds of cells, those to be filled, and those to be refused.
            encoded = self.spec.encode(features)
            return predict_batch(self.spec, encoded, keys, self.infer)


def _predicted_from_raw(
    spec: EstimatorSpec,
    arithmetic: Arithmetic,
    raw: dict[Any, Tensor],
    keys: Sequence[str] | None,
) -> tuple[Any, Tensor]:
    """Return predictions, and a sum that is finite only if all encoded numbers are."""
    with torch.no_grad():
        encoded = arithmetic(raw)
        # Before the network, which may change what it is given.
        first, *others = [values.sum() for values in encoded.values()]
        return predicted(spec, encoded, keys), sum(others, start=first)


def joined(batches: Iterable[dict[str, Any]], n_rows: int) -> dict[str, Any]:
    """Return the predictions for all rows of a table, of those for its batches.

    Numbers are copied at once to where they belong: small arrays that stay, between the
    large ones of hidden layers that come and go, would keep the memory of the latter.

    Examples
    --------
    >>> import numpy as np
    >>> from skest.engine.prediction import joined
    >>> joined([{"y": np.array([1, 2])}, {"y": np.array([3])}], n_rows=3)
    {'y': array([1, 2, 3])}
    """
    wholes: dict[str, Any] = {}
    parts: dict[str, list[Any]] = {}
    end = 0
    # (n_rows, ...) for numbers; strings have the width of the longest one of a batch.
    for number, batch in enumerate(batches):
        start, end = end, end + max(map(len, batch.values()), default=0)
        for key, values in batch.items():
            # One that comes later only would have rows that nobody sets.
            if number == 0 and values.dtype.kind in "biuf":
                wholes[key] = np.empty((n_rows, *values.shape[1:]), values.dtype)
            whole = wholes.get(key)
            if whole is not None and _is_part(values, whole[start:end]):
                whole[start:end] = values
            elif whole is None:
                parts.setdefault(key, []).append(values)
            else:  # not one row for each of the table
                parts[key] = [wholes.pop(key)[:start], values]
    # A hook of the model may have stopped early.
    known = {key: whole[:end] for key, whole in wholes.items()}
    return known | {key: np.concatenate(found) for key, found in parts.items()}


def _is_part(values: Any, place: Any) -> bool:
    return values.shape == place.shape and values.dtype == place.dtype


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
    with contextlib.ExitStack() as ending:
        source = builder.open_source(input_fn, ModeKeys.PREDICT)
        ending.enter_context(contextlib.closing(source))
        n_rows = source.rows_per_batch
        if n_rows is None:
            return
        config, device = builder.config, builder.device
        model = get_model(source, device)
        spec = model.spec
        run = Run(spec, config, global_step=model.global_step)
        ending.enter_context(contextlib.closing(run))
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
                # There is no loss without labels.
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
    seed = builder.config.random_seed or 0  # as for an evaluation
    spec = builder.build(features, None, ModeKeys.PREDICT, RunRandom(seed, device))
    spec.network.eval()
    # On a GPU nothing stays behind a call, for its memory is everybody's.
    is_shared = (
        version is not None
        and not spec.prediction_hooks
        and builder.model_fn.is_pure
        and device.type == "cpu"
    )
    execution, step = builder.config.execution, checkpoint.global_step
    model = PredictionModel(version if is_shared else None, step, spec, execution)
    if is_shared:
        load_variables(spec.network, checkpoint.variables, share=True)
    else:
        restore(spec, checkpoint)
    return model
