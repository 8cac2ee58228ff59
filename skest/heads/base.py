# SPDX-License-Identifier: Apache-2.0
"""`Head`: the part of a model behind its logits."""

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from numbers import Real
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from skest.core.checks import former_arguments
from skest.heads.labels import WeightColumn, check_given
from skest.keys import MetricKeys, ModeKeys
from skest.metrics import Metric
from skest.spec import EstimatorSpec

REGULARIZATION_LOSS = "regularization_loss"

_Summaries: TypeAlias = Callable[[Any, Any, Any], Mapping[str, Tensor]]


class Head(ABC):
    """Loss, predictions and metrics for logits of one kind (``tf.estimator.Head``).

    A head holds settings only and has no state, so it can be shared, copied, pickled and
    called from threads. Labels and weights go two ways: `loss` takes what the user has
    and checks it; in a run, `encode_labels` and `encode_features` check the whole table
    once, and `compute_loss` then never waits for the device.

    This is the contract; heads for one target derive from
    `skest.heads.SingleTaskHead`.

    Attributes
    ----------
    name : str or None
        Ends the names of the metrics, as in "accuracy/<name>".
    loss_reduction : {"sum_over_batch_size", "sum", "auto"}
        How losses of examples become one of the batch; see `skest.losses.reduce_loss`.
    """

    name: str | None
    loss_reduction: str

    @property
    @abstractmethod
    def logits_dimension(self) -> int:
        """Size of the last dimension of the logits."""

    @property
    @abstractmethod
    def _weight_columns(self) -> Sequence[str | WeightColumn]:
        """The columns with weights of examples."""

    @property
    @abstractmethod
    def _takes_features(self) -> bool:
        """Whether a `loss_fn` asks for raw features."""

    @abstractmethod
    def encode_labels(self, labels: Any, ndim: int | None = 2) -> Any:
        """Check raw labels and return what `compute_loss` takes, tensors on the host."""

    @abstractmethod
    def encode_features(
        self, features: Any, encoded: Mapping[str, Tensor]
    ) -> dict[str, Any]:
        """Add to encoded features what the head needs from the raw ones."""

    @abstractmethod
    def compute_loss(self, labels: Any, logits: Any, features: Any = None) -> Tensor:
        """Return the loss of encoded labels; values are not checked, shapes are."""

    @abstractmethod
    def predictions(
        self, logits: Any, keys: Sequence[Any] | None = None
    ) -> dict[Any, Any]:
        """Return what the logits say, by prediction key."""

    @abstractmethod
    def metrics(
        self, regularization_losses: Sequence[Any] | None = None
    ) -> dict[str, Metric]:
        """Return new metrics by name, for `update_metrics`."""

    @abstractmethod
    def update_metrics(
        self,
        eval_metrics: Mapping[str, Any],
        labels: Any,
        logits: Any,
        features: Any = None,
        regularization_losses: Sequence[Any] | None = None,
    ) -> None:
        """Add a batch to metrics that `metrics` returned."""

    @abstractmethod
    def _encode_beside(self, logits: Any, labels: Any) -> Any:
        """Encode labels and move them to the device of the logits, which are checked."""

    def loss(
        self,
        labels: Any,
        logits: Any,
        features: Any = None,
        mode: str | None = None,
        regularization_losses: Sequence[Any] | None = None,
    ) -> Tensor:
        """Return the loss of a batch of raw labels, after all checks.

        Parameters
        ----------
        labels : array-like of shape (n,) or (n, label_dimension)
            Raw labels, as `encode_labels` takes them.
        logits : Tensor of shape (..., logits_dimension)
            Result of the network.
        features : DataFrame or dict of arrays, default=None
            Raw or encoded features, for the weights and `loss_fn`.
        mode : str, default=None
            Taken for the sake of ``tf.estimator``; the loss is the same in all modes.
        regularization_losses : sequence of scalars, default=None
            Added to the loss.

        Returns
        -------
        Tensor of shape ()

        Raises
        ------
        ValueError
            If a shape or value is wrong.
        TypeError
            If something is of the wrong type.
        """
        encoded = self._encode_beside(logits, labels)
        # Behind the reduction, as base_head of tf.estimator adds them: a batch of any
        # size has the same penalty.
        return self.compute_loss(encoded, logits, features) + sum(
            regularization_losses or ()
        )

    def _note_regularization(
        self, eval_metrics: Mapping[str, Any], losses: Sequence[Any] | None
    ) -> None:
        """Add regularization losses, if there are any, to their metric."""
        if losses:
            # Each of them may be a number or a tensor.
            total = torch.as_tensor(sum(losses))
            eval_metrics[self._metric_name(REGULARIZATION_LOSS)].update(total)

    def _metric_name(self, key: str) -> str:
        # Names of tf.estimator, so that dashboards and exporters that go by them still
        # do.
        return f"{key}/{self.name}" if self.name else key

    def output_layer(
        self,
        in_features: int,
        *,
        dtype: torch.dtype | None = None,
        generator: torch.Generator | None = None,
        initialize: bool = True,
    ) -> nn.Module | None:
        """Return a new last layer for a network, if the head needs one of its own.

        Parameters
        ----------
        in_features : int
            Width of the last hidden layer.
        dtype : torch.dtype, default=None
            Floating type of the parameters; None is torch's default.
        generator : torch.Generator, default=None
            Draws the initial parameters; None is torch's global generator.
        initialize : bool, default=True
            Without, the parameters are left as memory was, for a checkpoint to fill.

        Returns
        -------
        torch.nn.Module or None
            None, unless a head says otherwise: any layer will do that gives
            `logits_dimension` logits.
        """
        return None

    def check_network(self, network: nn.Module) -> None:  # noqa: B027
        """Raise ValueError if a network to train does not go with the head."""

    @former_arguments(logits="give the 'network'", train_op_fn="give an 'optimizer'")
    def create_estimator_spec(
        self,
        features: Any,
        mode: str,
        network: nn.Module,
        labels: Any = None,
        optimizer: Any = None,
        encode: Callable[[Any], Mapping[str, Tensor]] | None = None,
        training_hooks: Any = (),
        training_chief_hooks: Any = (),
        evaluation_hooks: Any = (),
        prediction_hooks: Any = (),
        lr_scheduler: Any = None,
        clip_norm: float | None = None,
        summaries: _Summaries | None = None,
        regularization_losses: Sequence[Any] | None = None,
    ) -> EstimatorSpec:
        """Return the model that consists of a network and this head.

        Parameters
        ----------
        features, labels : first batch of raw data
            As ``model_fn`` got them; labels are None to predict.
        mode : {"train", "eval", "infer"}
            One of `skest.ModeKeys`.
        network : torch.nn.Module
            Encoded features to logits of shape (..., logits_dimension).
        optimizer, training_hooks, training_chief_hooks, evaluation_hooks, \
prediction_hooks, lr_scheduler, clip_norm
            As in `skest.EstimatorSpec`.
        summaries : callable, default=None
            As there, written beside the "loss/<name>" of a head that has a name.
        regularization_losses : sequence of callable or scalar, default=None
            Functions such as ``lambda: 0.01 * network.weight.square().sum()``, called in
            every step, or constants. Their sum is added to the loss, of training and of
            evaluation, and is the metric "regularization_loss".
        encode : callable, default=None
            Raw features to a dictionary of tensors. None means that the features are
            numbers already; the weights, too, then are one of them, and what a
            `loss_fn` takes.

        Returns
        -------
        EstimatorSpec

        Raises
        ------
        ValueError
            If labels are missing to train or evaluate, or the network is to be trained
            and does not go with the head.
        TypeError
            If a regularization loss is neither a function nor a constant.
        """
        # A network for prediction may end in plain logits.
        if mode == ModeKeys.TRAIN:
            self.check_network(network)
        # As in tf.estimator, weights are not needed to predict.
        if mode != ModeKeys.PREDICT:
            check_given(labels, self._title)
            encode = self._with_own_features(encode)
        # Wrapped, not changed: heads are shared by models and threads.
        head: Any = self
        if regularization_losses:
            head = RegularizedHead(self, regularization_losses)
        return EstimatorSpec(
            mode,
            network=network,
            encode=encode,
            # The logits, by whose axes labels are judged, are not there yet.
            encode_labels=partial(self.encode_labels, ndim=None),
            loss=head.compute_loss,
            predictions=self.predictions,
            optimizer=optimizer,
            eval_metrics=self.metrics(regularization_losses),
            update_metrics=head.update_metrics,
            # "loss" is what the run writes; `Head` of tf.estimator adds "loss/<name>"
            # for heads with names.
            summaries=_joined(self._named_losses if self.name else None, summaries),
            training_hooks=training_hooks,
            training_chief_hooks=training_chief_hooks,
            evaluation_hooks=evaluation_hooks,
            prediction_hooks=prediction_hooks,
            lr_scheduler=lr_scheduler,
            clip_norm=clip_norm,
        )

    def _with_own_features(
        self, encode: Callable[[Any], Mapping[str, Tensor]] | None
    ) -> Callable[[Any], Mapping[str, Any]] | None:
        columns = self._weight_columns
        if not (columns or self._takes_features):
            return encode
        if encode is None:
            if all(isinstance(column, str) for column in columns):
                return None  # the features, weights among them, are tensors then
            raise ValueError(
                f"'encode' is needed when the weight_column of {self._title} is a "
                "feature column. Pass it, or give the name of a feature as "
                "'weight_column'."
            )
        # From raw features: a weight is not scaled, and the network need not see it.
        return lambda features: self.encode_features(features, encode(features))

    def _named_losses(
        self, labels: Any, logits: Any, features: Any
    ) -> dict[str, Tensor]:
        loss = self.compute_loss(labels, logits, features)
        return {f"{MetricKeys.LOSS}/{self.name}": loss}

    @property
    def _title(self) -> str:
        """How messages call the head."""
        return type(self).__name__ + (f" {self.name!r}" if self.name else "")

    def __repr__(self) -> str:
        shown = []
        for parameter in inspect.signature(type(self)).parameters.values():
            if not hasattr(self, parameter.name):
                continue  # a constructor of the user's may take anything
            value, default = getattr(self, parameter.name), parameter.default
            if repr(value) != repr(default):  # arrays have no truth value
                shown.append(f"{parameter.name}={value!r}")
        return f"{type(self).__name__}({', '.join(shown)})"


class RegularizedHead:
    """A head whose loss has further terms, such as penalties of the variables.

    Parameters
    ----------
    head : Head
        Its loss is what the terms are added to.
    losses : sequence of callable or scalar
        The terms. A tensor that was computed from variables is none: the variables
        change, it does not, and has a gradient once only.
    """

    def __init__(self, head: Any, losses: Any) -> None:
        self.head = head
        self.losses = tuple(losses) if isinstance(losses, Sequence) else (losses,)
        for loss in self.losses:
            # One with a gradient has a graph, which the first backward pass frees.
            is_fixed = isinstance(loss, Tensor) and not loss.requires_grad
            if not (callable(loss) or isinstance(loss, Real) or is_fixed):
                raise TypeError(
                    "'regularization_losses' must be functions without arguments, such "
                    "as lambda: 0.01 * network.weight.square().sum(), or constants; got "
                    f"{loss!r}. A tensor of variables is computed once, not in each step."
                )

    def __repr__(self) -> str:
        return repr(self.head)

    @property
    def weight_column(self) -> Any:
        """That of the head."""
        return self.head.weight_column

    def adapted(self, **changes: Any) -> "RegularizedHead":
        """Return a copy of which the head is adapted."""
        return RegularizedHead(self.head.adapted(**changes), self.losses)

    def compute_loss(self, labels: Any, logits: Any, features: Any = None) -> Tensor:
        """Return the loss of the head, and the sum of the terms."""
        loss: Tensor = self.head.compute_loss(labels, logits, features)
        return loss + sum(self._terms())

    def update_metrics(
        self, eval_metrics: Any, labels: Any, logits: Any, features: Any
    ) -> None:
        """Add a batch to the metrics of the head, and to that of the terms."""
        self.head.update_metrics(eval_metrics, labels, logits, features, self._terms())

    # Called in every step: a tensor made once would be a constant without a gradient.
    def _terms(self) -> list[Any]:
        return [loss() if callable(loss) else loss for loss in self.losses]


def _joined(first: _Summaries | None, second: _Summaries | None) -> _Summaries | None:
    """Return a function that gives what both functions give."""
    if first is None or second is None:
        return first or second
    return lambda *args: {**first(*args), **second(*args)}
