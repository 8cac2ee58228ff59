# SPDX-License-Identifier: Apache-2.0
"""Which kind of target a column of ``y`` is, and the target of a head that is given."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from sklearn.utils.validation import column_or_1d

from skest.adapters.targets.base import Predictions, Scored, Target, TargetScale
from skest.adapters.targets.classes import ClassTarget, LabelsTarget, without_na
from skest.adapters.targets.numbers import LOSSES, NumberTarget
from skest.adapters.targets.several import SeveralTargets, columns_of
from skest.feature_columns.cells import holds_numbers, numbers
from skest.heads.classification import BinaryClassHead, MultiClassHead, SingleLabelHead
from skest.heads.multi_head import (
    MultiHead,
    encode_with_gaps,
    labels_and_known,
    whole_ids,
)
from skest.heads.multi_label import MultiLabelHead
from skest.heads.regression import (
    LogisticRegressionHead,
    PoissonRegressionHead,
    RegressionHead,
)
from skest.heads.single_task import SingleTaskHead
from skest.keys import PredictionKeys

_CLASSES, _LABELS, _NUMBERS = "classification", "multilabel", "regression"
#: What a head may be called.
# A quantile needs a number, which a name does not say: its head is given as an object.
KINDS = (_CLASSES, _LABELS, _NUMBERS, *(set(LOSSES) - {"quantile"}))
# Whole numbers with more different values than this are numbers, not classes.
_MOST_CLASSES = 20


def infer_target(values: Any, owner: str) -> Target:
    """Return a target for values that may have gaps, of which no kind is said.

    Strings, categories and booleans are classes, and so are whole numbers of at most 20
    different values; a matrix of zeros and ones is several labels; the rest is numbers.
    """
    # A class is one number or name a row: two dimensions are indicators, or numbers.
    if np.ndim(values) == 2:
        known = numbers(np.asarray(values), "y")
        known = known[~np.isnan(known)] if known.dtype.kind == "f" else known
        return make_target(_LABELS if np.isin(known, (0, 1)).all() else _NUMBERS, owner)
    values = values if isinstance(values, pd.Series) else np.asarray(values)
    if values.dtype.kind in "mM":
        raise ValueError(
            f"{owner} cannot predict dates or durations (dtype {values.dtype}). Make "
            "numbers or categories of them."
        )
    if not holds_numbers(values):
        return make_target(_CLASSES, owner)
    distinct = pd.unique(numbers(values, "y"))
    distinct = distinct[~pd.isna(distinct)]
    # `type_of_target` of scikit-learn takes all whole numbers for classes; a year, or a
    # count, is none.
    few = len(distinct) <= _MOST_CLASSES and (distinct % 1 == 0).all()
    return make_target(_CLASSES if few else _NUMBERS, owner)


def make_target(kind: Any, owner: str) -> Target:
    """Return the target of a kind, or of a head."""
    if isinstance(kind, SingleTaskHead):
        return GivenTarget(owner, kind)
    if kind == _CLASSES:
        return ClassTarget(owner)
    if kind == _LABELS:
        return LabelsTarget(owner)
    if kind == _NUMBERS:
        return NumberTarget(owner)
    if kind in KINDS:
        return NumberTarget(owner, loss=kind)
    raise ValueError(
        f"A head of {owner} must be one of {', '.join(map(repr, sorted(KINDS)))} or a "
        f"head for one target of skest.heads; got {kind!r}."
    )


def several_targets(
    y: Any, heads: Any, head_weights: Any, owner: str
) -> SeveralTargets:
    """Return the targets of `y` for the parameters of `MultiHeadEstimator`."""
    found = columns_of(y)
    if isinstance(heads, str) and heads == "auto":
        # None stands for a kind that the values of the column are to say.
        kinds: dict[Any, Any] = dict.fromkeys(found)
    else:
        kinds = _kinds_by_name(heads, found, owner)
    columns: dict[str, list[Any]] = {}
    targets: dict[str, Target] = {}
    for label, entry in kinds.items():
        # A string: it becomes part of the keys of predictions and metrics.
        name, (kind, some) = str(label), _kind_and_columns(label, entry, owner)
        _check_columns(name, some, columns, found, owner)
        columns[name] = some
        targets[name] = (
            infer_target(found[label], owner)
            if kind is None
            else make_target(kind, owner)
        )
    weights = _weights_by_name(head_weights, targets, owner)
    return SeveralTargets(owner, targets, columns, weights)


def _kind_and_columns(label: Any, entry: Any, owner: str) -> tuple[Any, list[Any]]:
    """Take an entry of 'heads' apart."""
    # A label of a column of pandas may be a tuple; an entry that is one is a pair.
    if not isinstance(entry, tuple):
        return entry, [label]
    if len(entry) != 2 or isinstance(entry[1], str) or not len(entry[1]):
        raise ValueError(
            f"An entry of 'heads' of {owner} that is a tuple must be a pair of a kind and "
            f"a list of columns, as ('multilabel', ['a', 'b']); got {entry!r}."
        )
    return entry[0], list(entry[1])


def _check_columns(
    name: str,
    some: list[Any],
    columns: Mapping[str, list[Any]],
    found: Mapping[Any, Any],
    owner: str,
) -> None:
    """Refuse a head of a name that is taken, or of columns that are taken or lacking."""
    if name in columns:
        raise ValueError(
            f"Two heads of {owner} have the name {name!r}. Rename a column of y, or give "
            "'heads' other names."
        )
    unknown = [column for column in some if column not in found]
    if unknown:
        raise ValueError(
            f"'heads' of {owner} names {', '.join(map(repr, unknown))}, but y has "
            f"{', '.join(map(repr, found))}."
        )
    taken = [column for other in columns.values() for column in other if column in some]
    if taken:
        raise ValueError(
            f"'heads' of {owner} names the column {taken[0]!r} of y twice. Copy the "
            "column under another name."
        )


def given_targets(owner: str, head: MultiHead) -> SeveralTargets:
    """Return the targets of the heads of a `MultiHead`."""
    # As in tf.estimator.MultiHead, each head has its labels under its own name.
    names = [str(part.name) for part in head.heads]
    return SeveralTargets(
        owner,
        {
            n: GivenTarget(owner, part)
            for n, part in zip(names, head.heads, strict=True)
        },
        {name: [name] for name in names},
        _weights_by_name(head.head_weights, names, owner),
    )


def _kinds_by_name(heads: Any, found: Mapping[Any, Any], owner: str) -> dict[Any, Any]:
    if isinstance(heads, Mapping):
        if not heads:
            raise ValueError(f"'heads' of {owner} is empty; it needs a head.")
        return dict(heads)
    # A string is a sequence as well, of letters.
    if isinstance(heads, str) or not isinstance(heads, Sequence):
        raise ValueError(
            f"'heads' of {owner} must be \"auto\", a list with a head for each column of "
            f"y, or a dictionary of heads by name; got {heads!r}."
        )
    if len(heads) != len(found):
        raise ValueError(
            f"'heads' of {owner} has {len(heads)} entries for {len(found)} columns of y. "
            "Give one for each, or a dictionary for some."
        )
    return dict(zip(found, heads, strict=True))


def _weights_by_name(
    weights: Any, names: Iterable[str], owner: str
) -> dict[str, float] | None:
    """Return 'head_weights' by name; those of a dictionary that lack are 1."""
    names = list(names)
    if weights is None:
        return None
    if isinstance(weights, Mapping):
        unknown = [name for name in weights if str(name) not in names]
        if unknown:
            raise ValueError(
                f"'head_weights' of {owner} names {', '.join(map(repr, unknown))}; the "
                f"heads are {', '.join(map(repr, names))}."
            )
        # Columns of `y` may be called by numbers, heads are called by strings.
        given = {str(name): weight for name, weight in weights.items()}
        weights = [given.get(name, 1.0) for name in names]
    weights = list(weights)
    if len(weights) != len(names):
        raise ValueError(
            f"'head_weights' of {owner} must have a number for each of the {len(names)} "
            f"heads; got {len(weights)}."
        )
    if not any(weights):
        raise ValueError(
            f"'head_weights' of {owner} are all 0, so nothing would be learned."
        )
    return dict(zip(names, weights, strict=True))


class GivenTarget(Target):
    """The target of a head: it takes what the head takes, and checks as the head does.

    Parameters
    ----------
    owner : str
        The estimator, as messages call it.
    head : SingleTaskHead
        Loss, predictions and metrics. A head for no kind of classes is expected to
        predict "predictions".
    """

    def __init__(self, owner: str, head: SingleTaskHead) -> None:
        super().__init__(owner)
        self._head = head
        # A head says what it predicts in the keys that ours do, whatever its loss is:
        # the target of its kind answers and scores for it.
        self._like = _target_like(owner, head)
        self.fewest_scored = self._like.fewest_scored
        self.answer_keys: Sequence[Any] = self._like.answer_keys
        self.proba_keys: Sequence[Any] = self._like.proba_keys

    @property
    def classes(self) -> np.ndarray:
        """The names of the classes, or their ids; AttributeError if there are none."""
        return self._like.classes  # type: ignore[attr-defined]

    def learn(self, y: Any, *, gaps: bool = False, classes: Any = None) -> None:
        """Learn the shape of numbers; anything else is said by the head."""
        self.check_classes(classes)
        if isinstance(self._like, NumberTarget):
            self._like.shape = np.shape(self._values(y))[1:]

    def check_classes(self, classes: Any) -> None:
        """Refuse classes that are not those of the head; None is fine."""
        self._like.check_classes(classes)

    def encode(self, y: Any, *, gaps: bool = False, strict: bool = True) -> Any:
        """Return `y` itself after a check: the head looks names up on its own."""
        y = self._values(y)
        if gaps:
            encoded, known = labels_and_known(encode_with_gaps(self._head, y))
            encoded = encoded if known is None else encoded[known[:, 0]]
        else:
            encoded = self._head.encode_labels(y)
        if isinstance(self._like, NumberTarget):
            self._like.check_range(encoded.numpy())
        return y

    def _values(self, y: Any) -> Any:
        # As scikit-learn does where there is one number or class in a row.
        is_single = self._head._label_dimension == 1 and np.ndim(y) == 2
        y = column_or_1d(y, warn=True) if is_single else y
        if isinstance(y, pd.Series) and y.dtype == object:
            y = y.to_numpy()
        return without_na(y, None) if isinstance(y, np.ndarray) else y

    def head(
        self, weight_column: str | None, name: str | None = None
    ) -> SingleTaskHead:
        """Return the head, with the weights of this fit."""
        if weight_column is not None and self._head.weight_column is not None:
            raise ValueError(
                f"{self.owner} got 'sample_weight', but its {self._head!r} reads "
                "weights from a column. Give weights in one way only."
            )
        return self._head.adapted(name=name, weight_column=weight_column)

    def answer(self, predictions: Predictions) -> np.ndarray:
        """Return classes, indicators or numbers."""
        return self._like.answer(predictions)

    def score(self, rows: Scored) -> float:
        """Return accuracy or R²; a probability as label counts as the class it is for."""
        labels = rows.labels
        if isinstance(labels, np.ndarray | pd.Series):
            labels = whole_ids(np.asarray(labels), self._head)
        encoded = self._head.encode_labels(labels).numpy()
        # BinaryClassHead takes probabilities as labels.
        if isinstance(self._like, ClassTarget):
            encoded = encoded[:, 0].round().astype(int)
        return self._like.score(rows._replace(labels=encoded))

    @property
    def loss_keys(self) -> Sequence[Any]:
        """The prediction that is the logits: that of numbers, if they have no link."""
        head = self._head
        # As of tf.estimator's RegressionHead, logits are among the predictions with a
        # link only.
        has_link = not isinstance(head, RegressionHead) or head.inverse_link_fn
        return (PredictionKeys.LOGITS if has_link else PredictionKeys.PREDICTIONS,)

    def scale(self, labels: Any, weight: np.ndarray | None) -> TargetScale | None:
        """Return the scale if the head has a loss for which it is known."""
        if not isinstance(self._like, NumberTarget) or _is_custom(self._head):
            return None
        return self._like.scale(self._head.encode_labels(labels).numpy(), weight)

    def best_constant(
        self, labels: Any, weight: np.ndarray | None
    ) -> TargetScale | None:
        """Return that of the kind of the head, if the loss is the usual one."""
        head = self._head
        if not isinstance(self._like, ClassTarget | LabelsTarget):
            return self.scale(labels, weight)
        if type(head) not in _HEADS_OF_CLASSES or head.loss_fn is not None:
            return None
        encoded = head.encode_labels(labels).numpy()
        is_class = isinstance(self._like, ClassTarget)
        # BinaryClassHead takes probabilities as labels.
        return self._like.best_constant(
            encoded[:, 0].round() if is_class else encoded, weight
        )


_HEADS_OF_CLASSES = (BinaryClassHead, MultiClassHead, MultiLabelHead)


def _target_like(owner: str, head: SingleTaskHead) -> Target:
    """Return the target whose answers the predictions of a head make."""
    like: ClassTarget | LabelsTarget
    if isinstance(head, SingleLabelHead):
        like = ClassTarget(owner)
    elif isinstance(head, MultiLabelHead):
        like = LabelsTarget(owner)
    elif isinstance(head, PoissonRegressionHead):
        return NumberTarget(owner, "poisson")
    elif isinstance(head, LogisticRegressionHead):
        return NumberTarget(owner, "logistic")
    else:
        return NumberTarget(owner)
    # Without names the labels are ids from 0, as tf.estimator's heads take them.
    names = head.label_vocabulary
    like.classes = np.arange(head.n_classes) if names is None else np.asarray(names)
    return like


def _is_custom(head: SingleTaskHead) -> bool:
    """Tell whether a head of numbers has a loss or a link of the user's."""
    # Labels are scaled for losses that are known to take it; that of a user may mean the
    # numbers as they are.
    known = (PoissonRegressionHead, LogisticRegressionHead)
    is_own = not isinstance(head, RegressionHead) or head.loss_fn is not None
    has_link = getattr(head, "inverse_link_fn", None) is not None
    return is_own or (has_link and not isinstance(head, known))
