# SPDX-License-Identifier: Apache-2.0
"""`SampledSoftmaxHead`: one of very many classes, and the layer that it trains."""

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from skest.core.checks import check_choice, check_integer
from skest.feature_columns.lookup import bring_rows, row_lookup, row_table
from skest.heads.classification import MultiClassHead
from skest.heads.labels import WeightColumn, check_dense, matched_labels
from skest.keys import MetricKeys, PredictionKeys
from skest.losses import reduce_loss
from skest.metrics import Mean, Metric

# Classes are drawn as integers below this, the finest steps that float64 has at 1.
_WHOLE = 2**53
# Below it, an interval of the draws could be empty: 2**-53 is 1.1e-16.
_SMALLEST_SHARE = 1e-15
_NAMED: Mapping[str, Callable[[int], np.ndarray]] = {
    # Zipf's law, as tf.random.log_uniform_candidate_sampler has it: classes are in the
    # order of their frequencies.
    "log_uniform": lambda n: np.log1p(1 / np.arange(1, n + 1)) / np.log1p(n),
    "uniform": lambda n: np.full(n, 1 / n),
}


class ClassTable(nn.Module):
    """A linear map to logits whose gradient has the rows of few classes only.

    In evaluation mode it returns the logits of all classes. In training mode it draws
    some classes, with replacement and the same for all rows of a batch, and returns what
    `sampled_logits` needs; the logits of all classes are never computed.

    Parameters
    ----------
    in_features : int
        Width of the last hidden layer.
    n_classes : int
        Number of classes.
    num_sampled : int
        Draws per batch.
    class_distribution : {"log_uniform", "uniform"} or array-like of n_classes floats, \
default="log_uniform"
        What the classes are drawn from; see `SampledSoftmaxHead`.
    dtype : torch.dtype, default=None
        Floating type of the parameters; None is torch's default.
    generator : torch.Generator, default=None
        Draws the initial weights, Glorot-uniform; None is torch's global generator.
    initialize : bool, default=True
        Without, the parameters are left as memory was, for a checkpoint to fill.

    Attributes
    ----------
    weight : row table of shape (n_classes, in_features)
    bias : row table of shape (n_classes, 1)
    generator : torch.Generator or None
        Draws the classes. The training run sets it; None is torch's global generator.

    Raises
    ------
    ValueError
        If a number is not positive or the distribution is wrong.
    TypeError
        If a number is no integer or the distribution no array of numbers.

    Examples
    --------
    >>> import torch
    >>> from skest.heads.sampled_softmax import ClassTable
    >>> layer, hidden = ClassTable(2, n_classes=1000, num_sampled=20), torch.ones(3, 2)
    >>> layer.eval()(hidden).shape
    torch.Size([3, 1000])
    >>> list(layer.train()(hidden))
    ['hidden', 'weight', 'bias', 'sampled', 'log_expected_count']
    """

    edges: Tensor

    def __init__(
        self,
        in_features: int,
        n_classes: int,
        num_sampled: int,
        class_distribution: Any = "log_uniform",
        *,
        dtype: torch.dtype | None = None,
        generator: torch.Generator | None = None,
        initialize: bool = True,
    ) -> None:
        super().__init__()
        check_integer(in_features, "in_features", "ClassTable", 1)
        check_integer(n_classes, "n_classes", "ClassTable", 1)
        check_integer(num_sampled, "num_sampled", "ClassTable", 1)
        self.n_classes = n_classes
        self.num_sampled = num_sampled
        self.generator: torch.Generator | None = None
        shares = class_shares(class_distribution, n_classes, "ClassTable")
        # Integers, so that no change of the network's type makes them coarser. They
        # follow from the arguments and take no part in checkpoints.
        self.register_buffer("edges", _edges(shares), persistent=False)
        weight = torch.empty(n_classes, in_features, dtype=dtype)
        bias = torch.empty(n_classes, 1, dtype=dtype)
        if initialize:
            # As tf.keras.layers.Dense, whose rows are these columns.
            nn.init.xavier_uniform_(weight, generator=generator)
            nn.init.zeros_(bias)
        self.weight = row_table(weight)
        # Evaluation multiplies all of it, so that its place in memory decides how sums
        # are rounded (see `load_variables`).
        self.weight.is_multiplied = True  # type: ignore[attr-defined]
        self.bias = row_table(bias)

    def forward(self, hidden: Tensor) -> Tensor | dict[str, Tensor]:
        """Return logits, or in training mode a sample for `sampled_logits`.

        Parameters
        ----------
        hidden : Tensor of shape (..., in_features)
            The last hidden layer.

        Returns
        -------
        Tensor of shape (..., n_classes), or dict of str to Tensor
            The dictionary holds `hidden`, `weight`, `bias`, the ids ``sampled`` of shape
            (num_sampled,), and ``log_expected_count``, the logarithm of how often each
            of them is expected among the draws.
        """
        if not self.training:
            # The bias is a table of one column, to be looked up as the weights are.
            return F.linear(hidden, self.weight, self.bias[:, 0])
        sampled, log_expected_count = self._sample()
        return {
            "hidden": hidden,
            "weight": self.weight,
            "bias": self.bias,
            "sampled": sampled,
            "log_expected_count": log_expected_count.to(hidden.dtype),
        }

    def _sample(self) -> tuple[Tensor, Tensor]:
        """Draw ids by the inverse of the distribution function."""
        draws = torch.randint(
            _WHOLE,
            (self.num_sampled,),
            generator=self.generator,
            device=self.edges.device,
        )
        # An integer, so that no type of the network rounds a rare class away.
        # (num_sampled,): the class whose interval [edge, next edge) holds the draw.
        ids = torch.searchsorted(self.edges, draws, right=True) - 1
        # Widths are up to 2**53, which is infinity in float16.
        widths = (self.edges[ids + 1] - self.edges[ids]).to(
            torch.promote_types(self.weight.dtype, torch.float32)
        )
        # log(S q): a width is q times 2**53.
        return ids, widths.log() + math.log(self.num_sampled / _WHOLE)

    def extra_repr(self) -> str:
        """Return what stands in the brackets of the module's text."""
        return (
            f"in_features={self.weight.shape[1]}, n_classes={self.n_classes}, "
            f"num_sampled={self.num_sampled}"
        )


def sampled_logits(labels: Tensor, sample: Mapping[str, Tensor]) -> Tensor:
    """Return the logits of the labels, and corrected ones of the sampled classes.

    Parameters
    ----------
    labels : Tensor of shape (..., 1), int64
        Class ids.
    sample : dict
        Result of a `ClassTable` in training mode.

    Returns
    -------
    Tensor of shape (..., 1 + num_sampled)
        First the logit of the label. Then ``logit - log_expected_count`` of the sampled
        classes, -inf where one is the label: the sum of their exponentials has the sum
        over all classes but the label as its expectation.

    Examples
    --------
    >>> import torch
    >>> from skest.heads.sampled_softmax import sampled_logits
    >>> sample = {
    ...     "hidden": torch.tensor([[2.0]]),
    ...     "weight": torch.tensor([[1.0], [2.0], [3.0]]),
    ...     "bias": torch.tensor([[0.0], [0.5], [0.0]]),
    ...     "sampled": torch.tensor([1, 2]),
    ...     "log_expected_count": torch.tensor([-1.0, -2.0]),
    ... }
    >>> sampled_logits(torch.tensor([[2]]), sample)
    tensor([[6.0000, 5.5000,   -inf]])
    """
    hidden, sampled = sample["hidden"], sample["sampled"]
    n_labels = labels.numel()
    # One look-up for labels and samples, so that the gradient is one, too.
    ids = torch.cat([labels.flatten(), sampled])
    for table in (sample["weight"], sample["bias"]):
        # Parameter servers are asked for rows before these are looked up.
        bring_rows(table, ids)
    rows, bias = row_lookup(sample["weight"], ids), row_lookup(sample["bias"], ids)
    # One product a row, not a matrix of all rows times all labels.
    of_labels = (hidden * rows[:n_labels].view_as(hidden)).sum(-1, keepdim=True)
    # (..., num_sampled): the same samples for all rows, so that this is one product.
    of_sampled = F.linear(hidden, rows[n_labels:], bias[n_labels:, 0])
    # A label that is drawn as well must not count as wrong: remove_accidental_hits of
    # tf.nn.sampled_softmax_loss.
    others = (of_sampled - sample["log_expected_count"]).masked_fill(
        labels == sampled, -math.inf
    )
    return torch.cat([of_labels + bias[:n_labels].view_as(labels), others], dim=-1)


def class_shares(distribution: Any, n_classes: int, owner: str) -> np.ndarray:
    """Return the probability of every class.

    Parameters
    ----------
    distribution : {"log_uniform", "uniform"} or array-like of shape (n_classes,)
        A name, or frequencies in any unit.
    n_classes : int
        Number of classes.
    owner : str
        Whose parameter it is, for the message.

    Returns
    -------
    ndarray of float64, shape (n_classes,)

    Raises
    ------
    ValueError
        If the name is unknown, the shape differs, or a frequency is not finite or too
        small to be drawn.
    TypeError
        If the frequencies are no numbers.

    Examples
    --------
    >>> from skest.heads.sampled_softmax import class_shares
    >>> class_shares([1, 2, 1], 3, "ClassTable")
    array([0.25, 0.5 , 0.25])
    """
    if isinstance(distribution, str):
        check_choice(distribution, "class_distribution", owner, _NAMED)
        return _NAMED[distribution](n_classes)
    frequencies = np.asarray(distribution)
    if frequencies.dtype.kind not in "iuf":
        raise TypeError(
            f"'class_distribution' of {owner} must be {' or '.join(map(repr, _NAMED))}, "
            f"or the frequencies of the classes as numbers; got {distribution!r}."
        )
    if frequencies.shape != (n_classes,):
        raise ValueError(
            f"'class_distribution' of {owner} must have one frequency for each of the "
            f"{n_classes} classes; got an array of shape {frequencies.shape}."
        )
    frequencies = frequencies.astype(np.float64)
    # Of the finite ones, so that the message names the infinite one, and not all
    # others.
    total = np.abs(frequencies[np.isfinite(frequencies)]).sum()
    right = np.isfinite(frequencies) & (frequencies > _SMALLEST_SHARE * total)
    if not right.all():
        wrong = int(np.argmin(right))
        raise ValueError(
            f"'class_distribution' of {owner} must hold finite frequencies above "
            f"{_SMALLEST_SHARE:g} of their sum; got {frequencies[wrong]:g} for class "
            f"{wrong}. A class that is never drawn would never be learned as a wrong "
            "one: give classes that did not occur a small count, such as 1."
        )
    return frequencies / total


def _edges(shares: np.ndarray) -> Tensor:
    """Return ends of intervals in [0, _WHOLE], as long as the classes are probable."""
    ends = np.cumsum(shares)
    edges = np.zeros(len(shares) + 1, dtype=np.int64)
    # By the last sum, which is 1 but for rounding: every draw finds an interval.
    edges[1:] = np.rint(ends / ends[-1] * _WHOLE)
    return torch.from_numpy(edges)


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
        top = min(_TOP_K, n_classes) if top_k is None else top_k
        check_integer(top, "top_k", self._title, 1, n_classes)
        # To refuse what is wrong now; the layer computes them for itself.
        class_shares(class_distribution, n_classes, self._title)
        self.num_sampled = num_sampled
        self.class_distribution = class_distribution
        self.top_k = top_k
        self._top_k = top

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
        # With any other last layer training would compute all logits, untold.
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

    def _encode_beside(self, logits: Any, labels: Any) -> Tensor:
        # `loss` takes a sample, too, which only training has.
        if not isinstance(logits, Mapping):
            return super()._encode_beside(logits, labels)
        hidden = logits["hidden"]
        return self.encode_labels(labels, hidden.ndim).to(hidden.device)

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
        # Softmax cross-entropy among the candidates, of which the label is number 0.
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
        # Tensors are hashed by identity; the cache is gone with these functions.
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
        # (..., top_k) == (..., 1)
        hits = (self._top(logits)[1] == labels).any(dim=-1, keepdim=True)
        return super()._metric_inputs(labels, logits) | {self._top_k_accuracy: (hits,)}
