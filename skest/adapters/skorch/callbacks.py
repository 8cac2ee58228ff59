# SPDX-License-Identifier: Apache-2.0
"""`SkorchCallbackHook`: skorch's callbacks in the training of skest."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import numpy as np
import torch
from sklearn.metrics import accuracy_score, r2_score
from sklearn.utils import ClassifierTags
from skorch import NeuralNet
from skorch.callbacks import Callback, EpochTimer, PassthroughScoring
from skorch.dataset import Dataset
from skorch.history import History
from skorch.utils import TeeGenerator, to_device, to_numpy
from torch import Tensor, nn

from skest.adapters.targets.base import learned_logits
from skest.hooks.base import EpochwiseHook, Run
from skest.inputs.array_dataset import ArrayDataset, count_rows, take_rows
from skest.inputs.batches import Source, tensor_batches
from skest.keys import ModeKeys, PredictionKeys


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
        # All rows as one batch: callbacks that score read `X` and `y` as a whole.
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
    verbose : int
        Whether callbacks may print.
    """

    def __init__(self, run: Run, callbacks: Sequence[Any], verbose: int) -> None:
        optimizer = run.spec.optimizers[0]
        super().__init__(
            run.network,
            criterion=_Loss(run.spec.loss),
            optimizer=type(optimizer),
            lr=optimizer.param_groups[0].get("lr"),
            # skorch's default, of a stream that has no batch size of its own.
            batch_size=128 if run.table is None else run.table.batch_size,
            # What is held out is the estimator's affair, or `validation`.
            train_split=None,
            callbacks=list(callbacks),
            verbose=verbose,
            device=str(next(run.network.parameters()).device),
        )
        self.run_ = run

    # What `initialize` makes of the parameters

    @property
    def _default_callbacks(self) -> list[tuple[str, Any]]:
        return [
            ("epoch_timer", EpochTimer()),
            ("train_loss", PassthroughScoring("train_loss", on_train=True)),
            ("valid_loss", PassthroughScoring("valid_loss")),
        ]

    def initialize_optimizer(self) -> "NetView":
        """Take the optimizers of the run."""
        for number, optimizer in enumerate(self.run_.spec.optimizers, start=1):
            setattr(self, f"optimizer{'' if number == 1 else number}_", optimizer)
        return self

    # Forward

    def infer(self, x: Any, **fit_params: Any) -> Any:
        """Return the output of the network for encoded features, in the learned scale."""
        logits = self.module_(x)
        # The loss of training takes these, in the scale that is learned, as they are.
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
                # At once and not lazily: the mode is put back before the caller reads
                # them.
                outputs = [
                    self.infer(take_rows(X, slice(i, i + self.batch_size)))
                    for i in batches
                ]
        finally:
            self._set_training(was_training)
        return (to_device(output, device) for output in outputs)

    # Prediction, which scorers of scikit-learn ask for

    def predict(self, X: Any) -> np.ndarray:
        """Return class ids, indicators of labels, or predictions of a regression."""
        answers = self._answers(X)
        for key in (PredictionKeys.CLASS_IDS, PredictionKeys.PREDICTIONS):
            if key in answers:
                values = to_numpy(answers[key])
                # Metrics of scikit-learn want one dimension for one output.
                return values[:, 0] if values.shape[1:] == (1,) else values
        return (_probabilities(answers) > 0.5).astype(int)

    def predict_proba(self, X: Any) -> np.ndarray:
        """Return probabilities of the classes, of shape (n_samples, n_classes)."""
        return _probabilities(self._answers(X))

    def score(self, X: Any, y: Any) -> float:
        """Return the accuracy of a classifier, or R squared."""
        metric = accuracy_score if self._is_classifier else r2_score
        return float(metric(y, self.predict(X)))

    @property
    def classes_(self) -> np.ndarray:
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


def _probabilities(answers: Any) -> np.ndarray:
    if PredictionKeys.PROBABILITIES not in answers:
        raise ValueError(
            f"A score asked for {PredictionKeys.PROBABILITIES!r}, but the predictions of "
            f"the model are {', '.join(map(repr, answers))}."
        )
    return to_numpy(answers[PredictionKeys.PROBABILITIES])


class _Loss(nn.Module):
    """The loss of a model as a criterion."""

    def __init__(self, loss: Any) -> None:
        super().__init__()
        self._loss = loss  # EstimatorSpec requires one to train

    def forward(self, y_pred: Any, y_true: Any, X: Any) -> Any:
        return self._loss(y_true, y_pred, X)


class SkorchCallbackHook(EpochwiseHook):
    """Lets callbacks of skorch watch, change and stop a training.

    The callbacks run unmodified. What they are given as ``net`` is a `skorch.NeuralNet`
    whose ``module_`` is the network, with ``history``, ``optimizer_``, ``predict``,
    ``save_params`` and the like. Batches, datasets and predictions are encoded: ``X`` as
    the network takes it, ``y`` as the loss takes it, so that classes are numbers from 0
    and targets of a regression have the scale in which they are learned.

    Parameters
    ----------
    callbacks : sequence of callbacks
        Callbacks of skorch, or pairs of a name and a callback. As in a ``NeuralNet``,
        EpochTimer and the PassthroughScoring of "train_loss" and "valid_loss" are there
        already; PrintLog is not.
    validation : ArrayDataset, default=None
        Features and labels for validation after every epoch, in the form in which
        training gets them. None takes the rows that a scikit-learn estimator holds out
        for early stopping, if it does.
    verbose : int, default=1
        As `NeuralNet` has it: with 0 the callbacks that print by default are silent.

    Attributes
    ----------
    history : skorch.history.History
        What happened in the epochs of the last training, also where that went on from an
        earlier one (``warm_start``, ``partial_fit``). Of an estimator as constructed that
        is the cycle on all rows; with ``early_stopping=True`` there is one training, and
        its rows held out are validated.

    Raises
    ------
    TypeError
        If an element of `callbacks` is no callback, or `validation` no ArrayDataset.
    ValueError
        In ``begin``: if the run is no training.

    Notes
    -----
    * A callback stops training by KeyboardInterrupt, as in skorch; from the beginning of
      a batch or an epoch, after that batch.
    * If callbacks put other variables into the network at the end (``load_best``),
      training ends with those, also where ``fit`` would restore the best epoch by its
      own validation score.
    * A stream of batches is one epoch, has no ``dataset_train``, and ``X`` and ``y`` of
      ``on_train_begin`` and ``on_train_end`` are always None.
    * Parameters of the net cannot be set, so InputShapeSetter has no place here.
    * Objects that clone or unpickle a hook, such as GridSearchCV, train with copies of
      it; the history is in ``search.best_estimator_.hooks[0]``.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from skorch.callbacks import EpochScoring
    >>> from skest import DNNClassifier
    >>> from skest.adapters.skorch import SkorchCallbackHook
    >>> hook = SkorchCallbackHook([EpochScoring("accuracy", on_train=True)])
    >>> model = DNNClassifier(
    ...     (8,), max_iter=3, early_stopping=False, random_state=0, hooks=[hook]
    ... ).fit(*load_iris(return_X_y=True))
    >>> len(hook.history), sorted(hook.history[-1])[:3]
    (3, ['accuracy', 'accuracy_best', 'batches'])
    """

    _net: Any
    _datasets: Any
    _handle: Any
    _output: Any

    def __init__(
        self,
        callbacks: Sequence[Any] = (),
        *,
        validation: ArrayDataset | None = None,
        verbose: int = 1,
    ) -> None:
        for item in callbacks:
            _check_callback(item)
        if validation is not None and not isinstance(validation, ArrayDataset):
            raise TypeError(
                "'validation' must be a skest.inputs.ArrayDataset; got "
                f"{type(validation).__name__}."
            )
        self.callbacks = callbacks
        self.validation = validation
        self.verbose = verbose
        self.history = History()
        self.__dict__.update(_IDLE)

    def begin(self, run: Run) -> None:
        """Initialize the callbacks."""
        super().begin(run)
        if run.mode != ModeKeys.TRAIN:
            raise ValueError(
                "SkorchCallbackHook is for training; got a run of mode "
                f"'{run.mode}'. Leave it out of the hooks of evaluate and predict."
            )
        self._net = NetView(run, self.callbacks, self.verbose).initialize()
        held_out = run.held_out if self.validation is None else self.validation
        tables = {"dataset_train": run.table, "dataset_valid": held_out}
        self._datasets = {
            name: None if table is None else EncodedRows(table, run)
            for name, table in tables.items()
        }
        self._stopped = False
        # A loss no longer tells the output, of which callbacks are told.
        self._handle = run.network.register_forward_hook(self._keep_output)
        self.history = self._net.history
        self._notify(run, "on_train_begin", X=None, y=None)

    def begin_epoch(self, run: Run) -> None:
        """Begin an epoch."""
        self._notify(run, "on_epoch_begin", **self._datasets)

    def before_step(self, run: Run) -> None:
        """Begin a batch, and perhaps an epoch."""
        # First, for it may begin an epoch; below, the end of one comes last.
        super().before_step(run)
        self._notify(run, "on_batch_begin", batch=run.batch, training=True)

    def after_backward(self, run: Run) -> None:
        """Hand out the gradients."""
        named = _with_dense_gradients(self._net.get_all_learnable_params())
        self._notify(
            run,
            "on_grad_computed",
            # Each callback gets all of them; a generator would be empty for the second.
            named_parameters=TeeGenerator(named),
            batch=run.batch,
            training=True,
        )

    def after_step(self, run: Run, loss: Any) -> None:
        """End a batch, and perhaps an epoch."""
        if not self._stopped and run.batch is not None:
            features, _ = run.batch
            # Waits for the device in every step, as skorch does.
            self._net.history.record_batch("train_loss", loss.item())
            n_rows = count_rows(features, "features")
            self._net.history.record_batch("train_batch_size", n_rows)
            self._notify(
                run,
                "on_batch_end",
                batch=run.batch,
                training=True,
                loss=loss,
                y_pred=self._output,
            )
        super().after_step(run, loss)

    def end_epoch(self, run: Run) -> None:
        """Validate, and end an epoch."""
        if self._stopped:
            return
        history = self._net.history
        # As `NeuralNet.run_single_epoch` would.
        history.record("train_batch_count", len(history[-1]["batches"]))
        valid = self._datasets["dataset_valid"]
        if valid is not None:
            with self._until_stopped(run):
                self._net.run_single_epoch(
                    valid.batches(),
                    training=False,
                    prefix="valid",
                    step_fn=self._net.validation_step,
                )
            run.network.train()
        self._notify(run, "on_epoch_end", **self._datasets)

    def end(self, run: Run) -> None:
        """End the training; callbacks may load other variables now."""
        super().end(run)
        self._handle.remove()
        # load_best and its like put variables in behind the last step.
        before = _versions(run.network)
        self._net.notify("on_train_end", X=None, y=None)
        self.chose_variables = _versions(run.network) != before
        # A checkpoint that a callback has loaded may have brought another.
        self.history = self._net.history
        # Not to be kept with a fitted estimator: the network, and tables of encoded rows.
        self.__dict__.update(_IDLE)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, **_IDLE}

    def _notify(self, run: Run, event: str, **kwargs: Any) -> None:
        """Tell the callbacks about an event, unless one of them has stopped training."""
        if not self._stopped:
            with self._until_stopped(run):
                self._net.notify(event, **kwargs)

    @contextmanager
    def _until_stopped(self, run: Run) -> Iterator[None]:
        """Understand KeyboardInterrupt, by which callbacks of skorch stop training."""
        try:
            yield
        except KeyboardInterrupt:
            self._stopped = True
            run.request_stop("a callback of skorch asked to stop")

    def _keep_output(self, network: nn.Module, inputs: Any, output: Any) -> None:
        if network.training:
            output = _detached(output)
            mean_logits = getattr(network, "mean_logits", None)  # of members
            self._output = mean_logits(output) if mean_logits else output


# What a hook has of a run while it lasts.
_IDLE = dict.fromkeys(("_net", "_datasets", "_handle", "_output"))


def _with_dense_gradients(
    named_parameters: Iterable[tuple[str, Tensor]],
) -> Iterator[tuple[str, Tensor]]:
    """Yield parameters; of a row table the touched rows, which share its gradient."""
    for name, parameter in named_parameters:
        if parameter.grad is not None and parameter.grad.is_sparse:
            parameter.grad = parameter.grad.coalesce()
            # Callbacks reckon with dense gradients, as clip_grad_norm_ does; what they
            # do to these in place is done to the table's.
            rows = parameter.detach()[parameter.grad.indices()[0]]
            rows.grad = parameter.grad.values()
            yield name, rows
        else:
            yield name, parameter


def _versions(network: nn.Module) -> list[int]:
    """Return numbers that change when variables are changed in place."""
    # To compare values would take a copy of all.
    return [value._version for value in network.state_dict(keep_vars=True).values()]


def _detached(output: Any) -> Any:
    """Return the output of a network apart from its graph."""
    if isinstance(output, Mapping):
        return {key: _detached(value) for key, value in output.items()}
    return output.detach() if isinstance(output, Tensor) else output


def _check_callback(item: Any) -> None:
    is_pair = isinstance(item, tuple | list) and len(item) == 2
    callback = item[1] if is_pair and isinstance(item[0], str) else item
    # skorch makes an object of a class, in `initialize`.
    is_class = isinstance(callback, type) and issubclass(callback, Callback)
    if not is_class and not isinstance(callback, Callback):
        raise TypeError(
            "'callbacks' must be callbacks of skorch, or pairs of a name and a callback; "
            f"got {item!r}."
        )
