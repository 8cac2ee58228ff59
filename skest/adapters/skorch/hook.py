# SPDX-License-Identifier: Apache-2.0
"""`SkorchCallbackHook`: skorch's callbacks in the training of skest."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from skorch.callbacks import Callback
from skorch.history import History
from skorch.utils import TeeGenerator
from torch import Tensor, nn

from skest.adapters.skorch.net_view import EncodedRows, NetView, Progress
from skest.hooks.base import Run
from skest.hooks.epochwise import EpochwiseHook
from skest.inputs.array_dataset import ArrayDataset, count_rows
from skest.keys import ModeKeys

__all__ = ["SkorchCallbackHook"]


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
        What happened in the epochs. A training that begins at step 0 begins a new
        history, one that goes on (``warm_start``, ``partial_fit``) continues it.

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
    >>> model = DNNClassifier((8,), max_iter=3, random_state=0, hooks=[hook])
    >>> model = model.fit(*load_iris(return_X_y=True))
    >>> len(hook.history), sorted(hook.history[-1])[:3]
    (3, ['accuracy', 'accuracy_best', 'batches'])
    """

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
        self._progress: Progress | None = None
        self._training: _Training | None = None

    def begin(self, run: Run) -> None:
        """Initialize the callbacks, unless an earlier training goes on."""
        super().begin(run)
        if run.mode != ModeKeys.TRAIN:
            raise ValueError(
                "SkorchCallbackHook is for training; got a run of mode "
                f"'{run.mode}'. Leave it out of the hooks of evaluate and predict."
            )
        progress = self._progress if run.start_step else None
        net = NetView(run, self.callbacks, progress, self.verbose).initialize()
        held_out = run.held_out if self.validation is None else self.validation
        self._training = _Training(net, run, held_out)
        self.history = net.history
        self._training.notify("on_train_begin", X=None, y=None)

    def begin_epoch(self, run: Run) -> None:
        """Begin an epoch."""
        self._now.begin_epoch()

    def before_step(self, run: Run) -> None:
        """Begin a batch, and perhaps an epoch."""
        super().before_step(run)
        self._now.notify("on_batch_begin", batch=run.batch, training=True)

    def after_backward(self, run: Run) -> None:
        """Hand out the gradients."""
        self._now.gradients_computed()

    def after_step(self, run: Run, loss: Any) -> None:
        """End a batch, and perhaps an epoch."""
        self._now.end_batch(loss)
        super().after_step(run, loss)

    def end_epoch(self, run: Run) -> None:
        """Validate, and end an epoch."""
        self._now.end_epoch()

    def end(self, run: Run) -> None:
        """End the training; callbacks may load other variables now."""
        super().end(run)
        self.chose_variables = self._now.finish()
        self.history = self._now.net.history  # a checkpoint may have brought another
        self._progress = self._now.net.progress
        self._training = None

    @property
    def _now(self) -> "_Training":
        if self._training is None:
            raise RuntimeError("SkorchCallbackHook was called before its 'begin'.")
        return self._training

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_training": None}


class _Training:
    """Turns the course of one run into the events of skorch."""

    def __init__(self, net: NetView, run: Run, held_out: ArrayDataset | None) -> None:
        self.net = net
        self._run = run
        self._train, self._valid = (
            None if table is None else EncodedRows(table, run)
            for table in (run.table, held_out)
        )
        self._stopped = False
        self._output: Any = None
        self._handle = run.network.register_forward_hook(self._keep_output)

    def notify(self, event: str, **kwargs: Any) -> None:
        """Tell the callbacks about an event, unless one of them has stopped training."""
        if not self._stopped:
            with self._until_stopped():
                self.net.notify(event, **kwargs)

    def begin_epoch(self) -> None:
        self._notify_epoch("on_epoch_begin")

    def gradients_computed(self) -> None:
        self.notify(
            "on_grad_computed",
            named_parameters=TeeGenerator(
                _with_dense_gradients(self.net.get_all_learnable_params())
            ),
            batch=self._run.batch,
            training=True,
        )

    def end_batch(self, loss: Tensor) -> None:
        if self._stopped or self._run.batch is None:
            return
        features, _ = self._run.batch
        self.net.history.record_batch("train_loss", loss.item())
        n_rows = count_rows(features, "features")
        self.net.history.record_batch("train_batch_size", n_rows)
        self.notify(
            "on_batch_end",
            batch=self._run.batch,
            training=True,
            loss=loss,
            y_pred=self._output,
        )

    def end_epoch(self) -> None:
        if self._stopped:
            return
        history = self.net.history
        history.record("train_batch_count", len(history[-1]["batches"]))
        if self._valid is not None:
            with self._until_stopped():
                self.net.run_single_epoch(
                    self._valid.batches(),
                    training=False,
                    prefix="valid",
                    step_fn=self.net.validation_step,
                )
            self._run.network.train()
        self._notify_epoch("on_epoch_end")

    def finish(self) -> bool:
        """End the training; tell whether callbacks put other variables into it."""
        self._handle.remove()
        before = _versions(self._run.network)
        self.net.notify("on_train_end", X=None, y=None)
        return _versions(self._run.network) != before

    def _notify_epoch(self, event: str) -> None:
        self.notify(event, dataset_train=self._train, dataset_valid=self._valid)

    @contextmanager
    def _until_stopped(self) -> Iterator[None]:
        """Understand KeyboardInterrupt, by which callbacks of skorch stop training."""
        try:
            yield
        except KeyboardInterrupt:
            self._stopped = True
            self._run.request_stop("a callback of skorch asked to stop")

    def _keep_output(self, network: nn.Module, inputs: Any, output: Any) -> None:
        if network.training:
            output = _detached(output)
            mean_logits = getattr(network, "mean_logits", None)  # of members
            self._output = mean_logits(output) if mean_logits else output


def _with_dense_gradients(
    named_parameters: Iterable[tuple[str, Tensor]],
) -> Iterator[tuple[str, Tensor]]:
    """Yield parameters; of a row table the touched rows, which share its gradient."""
    for name, parameter in named_parameters:
        if parameter.grad is not None and parameter.grad.is_sparse:
            parameter.grad = parameter.grad.coalesce()
            rows = parameter.detach()[parameter.grad.indices()[0]]
            rows.grad = parameter.grad.values()
            yield name, rows
        else:
            yield name, parameter


def _versions(network: nn.Module) -> list[int]:
    """Return numbers that change when variables are changed in place."""
    return [value._version for value in network.state_dict(keep_vars=True).values()]


def _detached(output: Any) -> Any:
    """Return the output of a network apart from its graph."""
    if isinstance(output, Mapping):
        return {key: _detached(value) for key, value in output.items()}
    return output.detach() if isinstance(output, Tensor) else output


def _check_callback(item: Any) -> None:
    is_pair = isinstance(item, tuple | list) and len(item) == 2
    callback = item[1] if is_pair and isinstance(item[0], str) else item
    is_class = isinstance(callback, type) and issubclass(callback, Callback)
    if not is_class and not isinstance(callback, Callback):
        raise TypeError(
            "'callbacks' must be callbacks of skorch, or pairs of a name and a callback; "
            f"got {item!r}."
        )
