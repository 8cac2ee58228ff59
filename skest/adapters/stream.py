# SPDX-License-Identifier: Apache-2.0
"""`StreamTrained`: estimators that also train on what does not fit into memory."""

import contextlib
import copy
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Self

from sklearn.callback import with_callbacks
from torch import Tensor

from skest.adapters.base import SkestEstimator, has_partial_fit
from skest.adapters.epochs import Progress
from skest.adapters.features import WEIGHT_KEY, Rows
from skest.adapters.fit import train_core
from skest.adapters.warm_source import whole_source
from skest.config.run_config import RunConfig
from skest.core.checks import former_arguments
from skest.core.console import voice
from skest.feature_columns.columns import FeatureColumns
from skest.hooks.base import Run
from skest.inputs.array_dataset import take_rows
from skest.inputs.batches import Source
from skest.inputs.files import BatchOfPiece
from skest.inputs.input_context import InputContext
from skest.inputs.sharding import call_input_fn, call_sharded
from skest.keys import ModeKeys


class StreamTrained(SkestEstimator):
    """Adds `train` to what the estimators have in common; not for direct use."""

    @former_arguments(hooks="give 'hooks' to the constructor")
    def train(
        self,
        input_fn: Callable[..., Any],
        steps: int | None = None,
        max_steps: int | None = None,
        classes: Any = None,
    ) -> Self:
        """Train on batches, of which only one is in memory at a time.

        The first call begins a model, unless `fit` or `partial_fit` has; later calls go
        on with it. Every batch is checked as the rows of `partial_fit` are.

        Parameters
        ----------
        input_fn : callable
            Returns batches ``(X, y)``, `X` and `y` as in `fit`: `ArrayDataset`, any
            iterable, or what `skest.inputs.parquet_input_fn` makes. It may name ``mode``,
            ``params``, ``config`` and ``input_context``, and decides on shuffling, on
            batch sizes and on the number of epochs.
        steps : int, default=None
            Batches to train on in this call. With neither this nor `max_steps` it is the
            estimator's own ``max_steps``, and if that is None, training ends with the
            input.
        max_steps : int, default=None
            Number of all steps, `n_steps_`, to stop at. If it is reached, nothing happens.
        classes : array-like of shape (n_classes,), default=None
            All classes; required in the first call unless the first batch has them all.

        Returns
        -------
        object
            This estimator. If training fails, an earlier fitted state stays as it was.

        Raises
        ------
        ValueError
            If feature columns are neither given complete nor fitted, a class is unknown,
            batches have no labels or there are none, both `steps` and `max_steps` are
            given, or a parameter of the estimator needs all rows at once.

        Notes
        -----
        What ``fit`` learns from all rows before the first step must be there before the
        first batch: vocabularies, quantiles and statistics of the feature columns. Fit
        them on a sample, ``FeatureColumns([...]).fit(sample)``, or begin with ``fit`` on
        one. The scale of a regression target is learned from the first batch. A call
        counts as one epoch in `n_iter_` and `loss_curve_`, where the mean of the losses of
        its batches is.

        Examples
        --------
        >>> import numpy as np
        >>> from skest import LinearClassifier
        >>> from skest.feature_columns import numeric_column
        >>> rng = np.random.default_rng(0)
        >>> def input_fn():
        ...     for _ in range(100):
        ...         x = rng.normal(size=50)
        ...         yield {"x": x}, np.where(x > 0, "up", "down")
        >>> model = LinearClassifier(
        ...     feature_columns=[numeric_column("x")], random_state=0
        ... )
        >>> model = model.train(input_fn, classes=["down", "up"])
        >>> model.predict({"x": [-1.0, 1.0]}), model.n_steps_
        (array(['down', 'up'], dtype='<U4'), 100)
        """
        trial = self._copy()
        trial._train_on(input_fn, steps, max_steps, classes)
        self._become(trial)
        return self

    @with_callbacks
    def _train_on(
        self,
        input_fn: Callable[..., Any],
        steps: int | None,
        max_steps: int | None,
        classes: Any,
    ) -> None:
        self._validate_params()
        has_partial_fit(self)
        if self.sampling == "weighted":
            raise ValueError(
                "sampling='weighted' draws from all rows, which train does not have. "
                "Leave it at 'epoch'."
            )
        config = self.config or RunConfig()
        seed = self._seed()
        data = call_input_fn(
            input_fn,
            mode=ModeKeys.TRAIN,
            params=self.get_params(deep=False),
            config=config.replace(random_seed=seed),
            input_context=None,
        )
        source = Source(data)
        # What `input_fn` has opened is closed, also where training fails or ends before
        # it.
        with contextlib.closing(source):
            resume = self.__sklearn_is_fitted__()
            first = self._first_rows(source, classes, resume)
            # Steps without a known end have a constant rate.
            self._schedule(None)
            if steps is None and max_steps is None:
                steps = self.max_steps
            train_core(
                self,
                _Batches(self, source, input_fn),
                _StreamProgress(report=voice(self.verbose)),
                given=(None, None, None),  # nothing is at hand as a whole
                seed=seed,
                # A property of the model: later batches have to agree with the first.
                weighted=first.weight is not None,
                resume=resume,
                steps=steps,
                max_steps=max_steps,
            )

    def _first_rows(self, source: Source, classes: Any, resume: bool) -> Rows:
        """Check the first batch, and begin a model with it unless there is one."""
        if resume:
            self._check_resumed()
            for parameter in self._column_parameters:
                if (columns := getattr(self, f"{parameter}_")) is not None:
                    setattr(self, f"{parameter}_", columns._without_limits())
        # It is not lost: the source gives it again as the first one to train on.
        batch = source.first_batch()
        if batch is None:
            raise ValueError(
                "The input of train has no batch; it needs at least one. Check that "
                "'input_fn' returns a new iterator in every call."
            )
        rows = self._rows_of(batch, classes, reset=not resume)
        if not resume:
            # Nobody knows how many there are.
            self._choose(math.inf, source=whole_source(self))
            columns = self._ready_columns(rows)
            for parameter, ready in columns.items():
                setattr(self, f"{parameter}_", ready)
            self._forget(rows)
        # Later batches may have numbers that are greater.
        if self._scale is not None:
            self._scale = self._scale.unbounded()
        return rows

    def _ready_columns(self, rows: Rows) -> dict[str, FeatureColumns | None]:
        """Return the feature columns, which have nothing left to learn."""
        ready: dict[str, FeatureColumns | None] = {}
        for parameter, kind in self._column_parameters.items():
            given = getattr(self, parameter)
            columns = self._given_columns(parameter, kind, rows)
            if columns is None:
                ready[parameter] = None
            elif given is None:
                raise ValueError(
                    f"'{parameter}' is None, and train cannot infer columns from a "
                    f"stream. Give {type(self).__name__} columns that are complete or "
                    "fitted, or call fit on a sample of the rows first."
                )
            # Fitted ones are taken as they are, and not cloned, which would make them
            # forget.
            elif isinstance(given, FeatureColumns) and given.__sklearn_is_fitted__():
                ready[parameter] = copy.copy(given)
            else:
                _check_complete(columns, parameter)
                # Nothing is left to learn: wrong cells are told, and names are kept.
                ready[parameter] = columns.fit(rows.features)
        return ready

    def _rows_of(
        self, batch: tuple[Any, Any], classes: Any = None, *, reset: bool = False
    ) -> Rows:
        X, y = batch
        if y is None:
            raise ValueError(
                "The batches of train must be pairs (X, y); got features without labels. "
                "Name the column of the labels (label=... of parquet_input_fn)."
            )
        return self._check_rows(X, y, None, classes, reset=reset)

    def _stream(self, source: Source) -> Iterator[tuple[Any, Any]]:
        """Yield what the core is trained on, batch by batch."""
        # A table is one that `input_fn` returns, an ArrayDataset: it knows its own
        # batches.
        raw = source.batches() if source.table is None else iter(source.table)
        piece: Any = None
        for batch in raw:
            X, y = batch if isinstance(batch, tuple) else (batch, None)
            if not isinstance(X, BatchOfPiece):
                yield self._checked(X, y)
                continue
            if X.piece is not piece:
                piece, checked = X.piece, self._checked(*X.piece)
            features, labels = (take_rows(part, X.rows) for part in checked)
            yield BatchOfPiece(features, checked, X.rows), labels

    def _checked(self, X: Any, y: Any) -> tuple[Any, Any]:
        """Return features and labels as the core takes them."""
        rows = self._rows_of((X, y))
        features = self._training_features(rows)
        if rows.weight is not None:
            # As they are: a mean of one in every batch would be another weighting.
            features = features | {WEIGHT_KEY: rows.weight}
        return features, rows.labels


@dataclass
class _Batches:
    """An ``input_fn`` that gives the core what a model makes of the batches of a user.

    Another process, to which it is sent, and one that reads a part only, open the input
    anew.
    """

    model: StreamTrained
    source: Source | None
    input_fn: Callable[..., Any]

    def __call__(self, config: RunConfig, input_context: InputContext | None) -> Any:
        source = self.source
        # A generator that has begun cannot be sent, nor divided: it is made again.
        if source is None or input_context is not None:
            params = self.model.get_params(deep=False)
            told = {"mode": ModeKeys.TRAIN, "params": params, "config": config}
            source = Source(call_sharded(self.input_fn, input_context, **told))
        return self.model._stream(source)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "source": None}


class _StreamProgress(Progress):
    """Notes the mean loss of a call of `train`, which is one epoch."""

    def __init__(self, report: Callable[[str], None] | None) -> None:
        super().__init__()
        self._report = report
        self._sum: Tensor | float = 0.0
        self._n_batches = 0

    def after_step(self, run: Run, loss: Tensor) -> None:
        """Add the loss; all of them would be too many to keep."""
        # On the device, in 64 bits: to read each loss would wait for an accelerator,
        # and a sum of a million of float32 loses its digits.
        self._sum = self._sum + loss.double()
        self._n_batches += 1
        super().after_step(run, loss)

    def end_epoch(self, run: Run) -> None:
        """Note the mean."""
        mean = float(self._sum) / self._n_batches
        self.loss_curve.append(mean)
        if self._report is not None:
            self._report(f"Step {run.global_step}: mean loss = {mean:.6f}")


def _check_complete(columns: FeatureColumns, parameter: str) -> None:
    """Refuse columns that have to learn from all rows."""
    learning = [column.name for column in columns.active if column.needs_fit]
    if learning:
        names = ", ".join(map(repr, learning))
        raise ValueError(
            f"'{parameter}' has columns that learn from all rows, which train does not "
            f"have: {names}. Say what they would learn (a vocabulary, boundaries, a "
            "number as fill value), give FeatureColumns([...]) that were fitted on a "
            "sample, or call fit on a sample of the rows first."
        )
