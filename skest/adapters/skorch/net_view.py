# SPDX-License-Identifier: Apache-2.0
"""`NetView`: a network in training, as skorch's callbacks see it."""

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.metrics import accuracy_score, r2_score
from sklearn.utils import ClassifierTags
from skorch import NeuralNet
from skorch.callbacks import EpochTimer, LRScheduler, PassthroughScoring
from skorch.dataset import Dataset
from skorch.history import History
from skorch.utils import to_device, to_numpy
from torch import Tensor, nn

from skest.adapters.target_scale import learned_logits
from skest.hooks.base import Run
from skest.inputs.array_dataset import ArrayDataset, count_rows, take_rows
from skest.inputs.batches import Source, tensor_batches
from skest.keys import PredictionKeys

__all__ = ["EncodedRows", "NetView", "Progress"]


class Progress(NamedTuple):
    """What a later training goes on with.

    Attributes
    ----------
    callbacks : list of (str, skorch.callbacks.Callback)
        They are initialized.
    history : skorch.history.History
        The epochs so far.
    rates : list of float or None
        The last learning rates, of all groups of all optimizers.
    """

    callbacks: list[tuple[str, Any]]
    history: History
    rates: list[float | None]


class EncodedRows(Dataset):
    """A table as the network of a run takes it, encoded when it is first read.

    Parameters
    ----------
    table : ArrayDataset
        Raw features and labels.
    run : Run
        Knows how to encode them.

    """

    def __init__(self, table: ArrayDataset, run: Run) -> None:
        self._table = table
        self._run = run

    def __len__(self) -> int:
        return self._table.n_rows

    def __getitem__(self, rows: Any) -> tuple[Any, Any]:
        X, y = self._encoded
        return take_rows(X, rows), None if y is None else take_rows(y, rows)

    @cached_property
    def _encoded(self) -> tuple[Any, Any]:
        spec, parameters = self._run.spec, list(self._run.network.parameters())
        floats = (p.dtype for p in parameters if p.is_floating_point())
        whole = ArrayDataset(
            self._table.features, self._table.labels, batch_size=len(self)
        )
        return next(
            tensor_batches(
                Source(whole),
                spec.encode,
                spec.encode_labels,
                parameters[0].device,
                next(floats, torch.get_default_dtype()),
            )
        )

    @property
    def X(self) -> Any:  # noqa: N802
        """Encoded features."""
        return self._encoded[0]

    @property
    def y(self) -> Any:
        """Encoded labels, or None."""
        return self._encoded[1]

    def batches(self) -> Iterator[tuple[Any, Any]]:
        """Yield the rows in their order, in batches of the table's size."""
        for start in range(0, len(self), self._table.batch_size):
            yield self[slice(start, start + self._table.batch_size)]


class NetView(NeuralNet):
    """A network in training as a `skorch.NeuralNet`: the one that callbacks are given.

    Its module and optimizers are those of the run, its criterion is the loss. It predicts
    encoded labels: class ids, or regression targets in the scale that is learned, as the
    ``y`` of its batches is. If a run has several optimizers, the first is `optimizer_`
    and the others are `optimizer2_` and so on.

    Parameters
    ----------
    run : Run
        A run of training.
    callbacks : sequence of callbacks
        As `skorch.NeuralNet` takes them; those that make ``train_loss``, ``valid_loss``
        and ``dur`` of the history come first.
    progress : Progress or None
        That of an earlier training, which this one goes on with.
    verbose : int
        Whether callbacks may print.
    """

    def __init__(
        self,
        run: Run,
        callbacks: Sequence[Any],
        progress: Progress | None,
        verbose: int,
    ) -> None:
        optimizer = run.spec.optimizers[0]
        super().__init__(
            run.network,
            criterion=_Loss(run.spec.loss),
            optimizer=type(optimizer),
            lr=optimizer.param_groups[0].get("lr"),
            batch_size=128 if run.table is None else run.table.batch_size,
            train_split=None,
            callbacks=list(callbacks),
            verbose=verbose,
            device=str(next(run.network.parameters()).device),
        )
        self.run_ = run
        self.progress_ = progress

    # What `initialize` makes of the parameters

    @property
    def _default_callbacks(self) -> list[tuple[str, Any]]:
        return [
            ("epoch_timer", EpochTimer()),
            ("train_loss", PassthroughScoring("train_loss", on_train=True)),
            ("valid_loss", PassthroughScoring("valid_loss")),
        ]

    def initialize_callbacks(self) -> "NetView":
        """Initialize the callbacks; those of an earlier training are initialized."""
        if self.progress_ is None:
            return super().initialize_callbacks()
        self.callbacks_ = self.progress_.callbacks
        return self

    def initialize_history(self) -> "NetView":
        """Begin a history, or go on with that of an earlier training."""
        self.history_ = History() if self.progress_ is None else self.progress_.history
        return self

    def initialize_optimizer(self) -> "NetView":
        """Take the optimizers of the run."""
        for number, optimizer in enumerate(self.run_.spec.optimizers, start=1):
            setattr(self, f"optimizer{'' if number == 1 else number}_", optimizer)
        if self.progress_ is not None and any(
            isinstance(callback, LRScheduler) for _, callback in self.callbacks_
        ):
            # skorch's optimizer would have kept them; most schedules build on them.
            for group, rate in zip(self._groups, self.progress_.rates, strict=True):
                group["lr"] = rate
        return self

    @property
    def progress(self) -> Progress:
        """What a later training would go on with."""
        rates = [group.get("lr") for group in self._groups]
        return Progress(self.callbacks_, self.history, rates)

    @property
    def _groups(self) -> list[dict[str, Any]]:
        return [g for o in self.run_.spec.optimizers for g in o.param_groups]

    # Forward

    def infer(self, x: Any, **fit_params: Any) -> Any:
        """Return the output of the network for encoded features, in the learned scale."""
        logits = self.module_(x)
        if self.module_.training:
            return logits
        return learned_logits(self.module_, logits)

    def get_loss(
        self, y_pred: Any, y_true: Any, X: Any = None, training: bool = False
    ) -> Tensor:
        """Return the loss of a batch."""
        return self.criterion_(y_pred, y_true, X)

    def forward_iter(
        self, X: Any, training: bool = False, device: Any = None
    ) -> Iterator[Any]:
        """Yield the outputs for encoded features or `EncodedRows`, batch by batch."""
        X = X.X if isinstance(X, EncodedRows) else X
        batches = range(0, count_rows(X, "X"), self.batch_size)
        was_training = self.module_.training
        self._set_training(training)
        try:
            with torch.no_grad():
                outputs = [
                    self.infer(take_rows(X, slice(i, i + self.batch_size)))
                    for i in batches
                ]
        finally:
            self._set_training(was_training)
        return (to_device(output, device) for output in outputs)

    # Prediction, which scorers of scikit-learn ask for

    def predict(self, X: Any) -> NDArray[Any]:
        """Return class ids, indicators of labels, or predictions of a regression."""
        answers = self._answers(X)
        for key in (PredictionKeys.CLASS_IDS, PredictionKeys.PREDICTIONS):
            if key in answers:
                values = to_numpy(answers[key])
                return values[:, 0] if values.shape[1:] == (1,) else values
        return (self._among(answers, PredictionKeys.PROBABILITIES) > 0.5).astype(int)

    def predict_proba(self, X: Any) -> NDArray[Any]:
        """Return probabilities of the classes, of shape (n_samples, n_classes)."""
        return self._among(self._answers(X), PredictionKeys.PROBABILITIES)

    def score(self, X: Any, y: Any) -> float:
        """Return the accuracy of a classifier, or R squared."""
        metric = accuracy_score if self._is_classifier else r2_score
        return float(metric(y, self.predict(X)))

    @property
    def classes_(self) -> NDArray[Any]:
        """The class ids."""
        return np.arange(self._example[PredictionKeys.PROBABILITIES].shape[1])

    @property
    def _is_classifier(self) -> bool:
        return PredictionKeys.PROBABILITIES in self._example

    @cached_property
    def _example(self) -> Any:
        """Predictions for one row, to read from what kind they are."""
        if self.run_.batch is None:
            raise RuntimeError("Nothing can be predicted before the first batch.")
        features, _ = self.run_.batch
        # Not self.forward_iter, in whose place scoring callbacks put cached outputs.
        (logits,) = NetView.forward_iter(self, take_rows(features, slice(1)))
        return self._predictions(logits)

    @staticmethod
    def _among(answers: Any, key: str) -> NDArray[Any]:
        if key not in answers:
            raise ValueError(
                f"A score asked for {key!r}, but the predictions of the model are "
                f"{', '.join(map(repr, answers))}."
            )
        return to_numpy(answers[key])

    def _answers(self, X: Any) -> Any:
        return self._predictions(self.forward(X, device=None))

    def _predictions(self, logits: Any) -> Any:
        if self.run_.spec.predictions is None:
            raise ValueError(
                "A score asked for predictions, but the EstimatorSpec of mode 'train' has "
                "none. Let model_fn fill them in this mode, too."
            )
        return self.run_.spec.predictions(logits)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.estimator_type = "classifier" if self._is_classifier else "regressor"
        tags.classifier_tags = ClassifierTags() if self._is_classifier else None
        return tags

    def __getstate__(self) -> Any:
        raise TypeError(
            "The net that callbacks see is a view of a training and can't be pickled. "
            "Pickle the estimator after fit; for Checkpoint leave f_pickle=None."
        )


class _Loss(nn.Module):
    """The loss of a model as a criterion."""

    def __init__(self, loss: Callable[[Any, Any, Any], Tensor] | None) -> None:
        super().__init__()
        self._loss = loss

    def forward(self, y_pred: Any, y_true: Any, X: Any) -> Tensor:
        if self._loss is None:  # EstimatorSpec requires one to train
            raise RuntimeError("The EstimatorSpec of this run has no loss.")
        return self._loss(y_true, y_pred, X)
