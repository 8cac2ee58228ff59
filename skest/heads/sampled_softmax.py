# SPDX-License-Identifier: Apache-2.0
"""`SampledSoftmaxHead`: one of very many classes."""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from skest._checks import check_integer
from skest.heads.class_table import ClassTable, class_shares, sampled_logits
from skest.heads.labels import check_dense, matched_labels
from skest.heads.multi_class import MultiClassHead
from skest.heads.weights import WeightColumn
from skest.keys import MetricKeys, PredictionKeys
from skest.losses import reduce_loss
from skest.metrics import Mean, Metric

__all__ = ["SampledSoftmaxHead"]

_TOP_K = 5


class SampledSoftmaxHead(MultiClassHead):
    """Head for one of very many classes, whose training computes few of their logits.

    The network has to end in the layer that `output_layer` makes; `skest.networks.DNN`
    takes ``output=head.output_layer``. In training that layer draws `num_sampled`
    classes for each batch, and the loss compares the label with those. Evaluation and
    prediction are those of `MultiClassHead`, with the logits of all classes.

    Predictions are logits, probabilities, class_ids and classes, and of the `top_k` most
    probable classes top_k_class_ids, top_k_probabilities and top_k_classes. Metrics are
    average_loss, accuracy and accuracy/top_<k>.

    Parameters
    ----------
    n_classes : int, at least 3
        Number of classes.
    num_sampled : int
        Classes drawn for each batch of training, with replacement.
    class_distribution : {"log_uniform", "uniform"} or array-like of n_classes floats, \
default="log_uniform"
        What they are drawn from; the closer to how often classes occur, the fewer draws
        are needed. "log_uniform" has probability ``log((k + 2) / (k + 1)) /
        log(n_classes + 1)`` for class k and suits ids sorted from frequent to rare. An
        array holds frequencies in any unit, all greater than 0.
    top_k : int, default=None
        How many of the most probable classes are predicted and counted as a hit; None is
        5, or all if there are fewer. Which of several equal ones comes last is left open.
    weight_column : str or NumericColumn, default=None
        See `skest.heads.SingleTaskHead`.
    label_vocabulary : sequence of n_classes str, default=None
        Names of the classes, in the order of their ids.
    loss_reduction, name
        See `skest.heads.SingleTaskHead`.

    Raises
    ------
    ValueError
        If a number, the distribution, the vocabulary or the reduction is wrong.
    TypeError
        If an argument has the wrong type.

    Notes
    -----
    For a hidden layer with the logits o, label t and S draws s of probability q(s), the
    loss is ``-o(t) + log(exp o(t) + Σ exp(o(s) - log(S q(s))))``; draws that hit the label
    are left out. The sum estimates that of ``exp o`` over all classes but t without bias:
    it is importance sampling of the partition function, as in Bengio and Senécal (2008)
    and, for large vocabularies, Jean et al. (2015). The label needs no correction, because
    it is there with certainty. (``tf.nn.sampled_softmax_loss`` corrects it, too, and draws
    without replacement.) The logarithm makes the loss too small on average, the less the
    more draws there are; compare models by the loss of evaluation.

    The loss of training is noisy, so an estimator that stops when it no longer improves
    stops too early: set ``early_stopping=True``, whose score is exact, or
    ``n_iter_no_change=np.inf``.

    A batch of evaluation takes ``4 * n_classes`` bytes per row and for each of two or
    three copies: 100 MB for 256 rows of 100,000 classes, but 1.6 GB for 4,096. So give the
    ``input_fn`` of evaluation and prediction a small batch size, and name the predictions
    that you want, as in ``predict_keys=["top_k_classes", "top_k_probabilities"]``: logits
    and probabilities are as large as the batch times all classes.

    References
    ----------
    Y. Bengio and J.-S. Senécal, "Adaptive Importance Sampling to Accelerate Training of a
    Neural Probabilistic Language Model", IEEE Transactions on Neural Networks 19(4), 2008.

    S. Jean, K. Cho, R. Memisevic and Y. Bengio, "On Using Very Large Target Vocabulary for
    Neural Machine Translation", ACL 2015 (arXiv 1412.2007).

    Examples
    --------
    >>> import torch
    >>> from skest.heads import SampledSoftmaxHead
    >>> head = SampledSoftmaxHead(1000, num_sampled=20, top_k=2)
    >>> network = torch.nn.Sequential(torch.nn.Linear(3, 8), head.output_layer(8))
    >>> head.loss([7, 300], network(torch.ones(2, 3))).shape
    torch.Size([])
    >>> logits = network.eval()(torch.ones(2, 3))
    >>> head.predictions(logits, keys=["top_k_class_ids"])["top_k_class_ids"].shape
    torch.Size([2, 2])
    """

    def __init__(
        self,
        n_classes: int,
        num_sampled: int,
        *,
        class_distribution: Any = "log_uniform",
        top_k: int | None = None,
        weight_column: str | WeightColumn | None = None,
        label_vocabulary: Sequence[str] | None = None,
        loss_reduction: str = "sum_over_batch_size",
        name: str | None = None,
    ) -> None:
        super().__init__(
            n_classes, weight_column, label_vocabulary, loss_reduction, name=name
        )
        check_integer(num_sampled, "num_sampled", self._title, 1)
        check_integer(n_classes if top_k is None else top_k, "top_k", self._title, 1)
        if top_k is not None and top_k > n_classes:
            raise ValueError(
                f"'top_k' of {self._title} must be at most the number of classes, "
                f"{n_classes}; got {top_k}."
            )
        class_shares(class_distribution, n_classes, self._title)
        self.num_sampled = num_sampled
        self.class_distribution = class_distribution
        self.top_k = top_k
        self._top_k = min(_TOP_K, n_classes) if top_k is None else top_k

    # The network

    def output_layer(
        self,
        in_features: int,
        *,
        dtype: torch.dtype | None = None,
        generator: torch.Generator | None = None,
        initialize: bool = True,
    ) -> ClassTable:
        """Return a new last layer for a network, see `skest.heads.Head.output_layer`.

        Returns
        -------
        ClassTable
            In evaluation mode it gives logits, in training mode a sample.
        """
        return ClassTable(
            in_features,
            self.n_classes,
            self.num_sampled,
            self.class_distribution,
            dtype=dtype,
            generator=generator,
            initialize=initialize,
        )

    def check_network(self, network: nn.Module) -> None:
        """Raise ValueError unless the network has a `ClassTable` of this size."""
        tables = [part for part in network.modules() if isinstance(part, ClassTable)]
        if any(table.n_classes == self.n_classes for table in tables):
            return
        sizes = ", ".join(str(table.n_classes) for table in tables)
        raise ValueError(
            f"{self._title} trains a network that ends in a ClassTable of "
            f"{self.n_classes} classes; got a {type(network).__name__} with "
            f"{f'one of {sizes}' if tables else 'none'}. Make its last layer with "
            "head.output_layer(in_features), as DNNEstimator does for this head alone, or "
            "use MultiClassHead."
        )

    # Loss

    def loss(
        self,
        labels: Any,
        logits: Any,
        features: Any = None,
        mode: str | None = None,
        regularization_losses: Sequence[Any] | None = None,
    ) -> Tensor:
        """Return the loss of a batch of raw labels, after all checks.

        As `skest.heads.Head.loss`; `logits` may also be what a `ClassTable` returns in
        training mode.
        """
        if isinstance(logits, Mapping):
            hidden = logits["hidden"]
            labels = self.encode_labels(labels, hidden.ndim).to(hidden.device)
            loss = self.compute_loss(labels, logits, features)
            return loss + sum(regularization_losses or ())
        return super().loss(labels, logits, features, mode, regularization_losses)

    def compute_loss(
        self,
        labels: Tensor,
        logits: Tensor | Mapping[str, Tensor],
        features: Any = None,
        known: Tensor | None = None,
    ) -> Tensor:
        """Return the loss of a batch; values are not checked, shapes are.

        Parameters
        ----------
        labels : Tensor of shape (..., 1)
            Result of `encode_labels`.
        logits : dict, or Tensor of shape (..., n_classes)
            Result of a `ClassTable` in training mode; or logits of all classes, whose
            loss is that of `MultiClassHead`.
        features, known
            See `skest.heads.SingleTaskHead.compute_loss`.

        Returns
        -------
        Tensor of shape ()

        Raises
        ------
        ValueError
            If shapes don't match or the weights are missing.
        """
        if not isinstance(logits, Mapping):
            return super().compute_loss(labels, logits, features, known)
        check_dense(labels, self._title)
        labels = matched_labels(
            labels, logits["hidden"], 1, self._title, "a hidden layer"
        )
        candidates = sampled_logits(labels, logits)  # that of the label is the first
        losses, weights = self._losses(
            torch.zeros_like(labels), candidates, features, known
        )
        return reduce_loss(losses, weights, self.loss_reduction)

    def _check_logits(self, logits: Any) -> None:
        if isinstance(logits, Mapping):
            raise TypeError(
                f"{self._title} needs the logits of all classes, but got the sample that "
                "a ClassTable gives in training mode. Call network.eval() first."
            )
        super()._check_logits(logits)

    # Predictions and metrics

    def _top(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Logits and ids of the most probable classes, best first."""
        return logits.topk(self._top_k, dim=-1)

    def _predictors(self) -> dict[str, Callable[[Tensor], Any]]:
        predictors = super()._predictors()
        # As large as the batch times all classes, and the same in every row.
        del predictors[PredictionKeys.ALL_CLASS_IDS]
        del predictors[PredictionKeys.ALL_CLASSES]
        top = functools.cache(self._top)  # once for all three

        def probabilities(z: Tensor) -> Tensor:
            return (top(z)[0] - z.logsumexp(dim=-1, keepdim=True)).exp()

        return predictors | {
            PredictionKeys.TOP_K_CLASS_IDS: lambda z: top(z)[1],
            PredictionKeys.TOP_K_PROBABILITIES: probabilities,
            PredictionKeys.TOP_K_CLASSES: lambda z: self._names[
                top(z)[1].cpu().numpy()
            ],
        }

    @property
    def _top_k_accuracy(self) -> str:
        return MetricKeys.TOP_K_ACCURACY % self._top_k

    def _metrics(self) -> dict[str, Metric]:
        return super()._metrics() | {self._top_k_accuracy: Mean()}

    def _metric_inputs(
        self, labels: Tensor, logits: Tensor
    ) -> dict[str, tuple[Tensor, ...]]:
        hits = (self._top(logits)[1] == labels).any(dim=-1, keepdim=True)
        return super()._metric_inputs(labels, logits) | {self._top_k_accuracy: (hits,)}
