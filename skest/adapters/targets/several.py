# SPDX-License-Identifier: Apache-2.0
"""`SeveralTargets`: targets of different kinds, one head each."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skest.adapters.target_scale import TargetScale
from skest.adapters.targets.base import Predictions, Target
from skest.adapters.targets.forms import TargetForm, columns_of
from skest.heads.multi_head import MultiHead
from skest.inputs.array_dataset import take_rows

__all__ = ["SeveralTargets"]


class SeveralTargets(Target):
    """Named targets, of which each row may lack some.

    Parameters
    ----------
    owner : str
        The estimator, as messages call it.
    targets : dict of str to Target
        By the name of the head.
    columns : dict of str to list
        The columns of `y` that a target reads; several are a matrix.
    weights : dict of str to float, default=None
        Factors of the losses and of the scores; None is 1 for all.
    """

    def __init__(
        self,
        owner: str,
        targets: Mapping[str, Target],
        columns: Mapping[str, Sequence[Any]],
        weights: Mapping[str, float] | None = None,
    ) -> None:
        super().__init__(owner)
        self.targets = dict(targets)
        self._columns = dict(columns)
        self._weights = dict(weights or dict.fromkeys(targets, 1.0))
        self.answer_keys = self._keys("answer_keys")
        self.proba_keys = self._keys("proba_keys")

    def _keys(self, kind: str) -> list[tuple[str, Any]]:
        return [
            (name, key)
            for name, target in self.targets.items()
            for key in getattr(target, kind)
        ]

    def learn(self, y: Any, *, gaps: bool = True, classes: Any = None) -> None:
        """Learn the form of `y`, and what each target has to learn.

        `classes` is a dictionary by head, or an array if there is one head; labels may
        always be missing.
        """
        self._form = TargetForm(y)
        all_classes = self._classes_by_head(classes)
        for name, values in self._values(y).items():
            target = self.targets[name]
            if not target.known(values).any():
                raise ValueError(
                    f"Target {name!r} of {self.owner} has no label at all in y. Leave "
                    "it out, or give labels for some rows."
                )
            with _named(name):
                target.learn(values, gaps=True, classes=all_classes.get(name))

    def check_classes(self, classes: Any) -> None:
        """Refuse classes that are not those learned; None is fine."""
        for name, of_head in self._classes_by_head(classes).items():
            with _named(name):
                self.targets[name].check_classes(of_head)

    def _classes_by_head(self, classes: Any) -> dict[str, Any]:
        if classes is None:
            return {}
        if not isinstance(classes, Mapping):
            if len(self.targets) == 1:
                return dict.fromkeys(self.targets, classes)
            raise TypeError(
                f"'classes' of {self.owner} must be a dictionary by head, because there "
                f"are several; got {type(classes).__name__}."
            )
        unknown = [name for name in classes if str(name) not in self.targets]
        if unknown:
            raise ValueError(
                f"'classes' of {self.owner} names {', '.join(map(repr, unknown))}; the "
                f"heads are {', '.join(map(repr, self.targets))}."
            )
        return {str(name): of_head for name, of_head in classes.items()}

    def encode(
        self, y: Any, *, gaps: bool = True, strict: bool = True
    ) -> dict[str, Any]:
        """Return the labels of the heads by name."""
        labels = {}
        for name, values in self._values(y).items():
            with _named(name):
                target = self.targets[name]
                labels[name] = target.encode(values, gaps=True, strict=strict)
        return labels

    def _values(self, y: Any) -> dict[str, Any]:
        """Return the values of the targets by name."""
        columns = columns_of(y)
        missing = [
            c for some in self._columns.values() for c in some if c not in columns
        ]
        if missing:
            raise ValueError(
                f"y of {self.owner} lacks {', '.join(map(repr, missing))}; it has "
                f"{', '.join(map(repr, columns))}. Give a DataFrame or a dictionary with "
                "these names."
            )
        return {
            name: columns[some[0]]
            if len(some) == 1
            else np.column_stack([columns[column] for column in some])
            for name, some in self._columns.items()
        }

    def head(self, weight_column: str | None, name: str | None = None) -> MultiHead:
        """Return the heads of the targets as one."""
        heads: list[Any] = [t.head(weight_column, n) for n, t in self.targets.items()]
        return MultiHead(heads, list(self._weights.values()))

    def answer(self, predictions: Predictions) -> Any:
        """Return the answers in the form that `y` had."""
        answers = {
            name: target.answer(_of_head(predictions, name))
            for name, target in self.targets.items()
        }
        return self._form.like_y(answers, self._columns)

    def probabilities(self, predictions: Predictions) -> Any:
        """Return those of every head in a list, with None for heads of numbers.

        If `y` was an array of one dimension, there is one head only and no list.
        """
        found = [
            target.probabilities(_of_head(predictions, name))
            for name, target in self.targets.items()
        ]
        return found[0] if self._form.is_column else found

    def score(
        self, predictions: Predictions, labels: Any, weight: NDArray[Any] | None
    ) -> float:
        """Return the weighted mean of the scores of the heads that have labels."""
        scores = self.scores(predictions, labels, weight)
        factors = [self._weights[name] for name in scores]
        if not any(factors):
            raise ValueError(
                f"A score of {self.owner} needs labels of at least one head of a "
                "positive weight, and two of one for numbers; heads with enough are "
                f"{list(scores)}."
            )
        return float(np.average(list(scores.values()), weights=factors))

    def scores(
        self, predictions: Predictions, labels: Any, weight: NDArray[Any] | None
    ) -> dict[str, float]:
        """Return the scores by head, each over the rows that have its label.

        A head with too few labels for its score is left out.
        """
        return {
            name: target.score(*_some(rows, predictions, name, labels, weight))
            for name, (target, rows) in self._with_labels(labels).items()
            if len(rows) >= target.fewest_scored
        }

    @property
    def validation_keys(self) -> list[Any]:
        """Predictions that the validation score is computed from."""
        return self._keys("loss_keys")

    def validation_score(
        self,
        predictions: Predictions,
        labels: Any,
        weight: NDArray[Any] | None,
        scale: TargetScale | None = None,
        features: Mapping[str, Any] | None = None,
    ) -> float:
        """Return minus the weighted sum of the losses, each in the units of training.

        A loss is the mean over the rows that have the label.
        """
        parts = dict.fromkeys(self.targets) if scale is None else self._split(scale)
        losses = [
            self._weights[name]
            * target.mean_loss(
                *_some(rows, predictions, name, labels, weight),
                parts[name],
                None if features is None else take_rows(features, rows),
                name,
            )
            for name, (target, rows) in self._with_labels(labels).items()
        ]
        return -float(sum(losses))

    def check_validation(self, labels: Any) -> None:
        """Refuse labels without any of a head that counts."""
        found = self._with_labels(labels)
        if not any(self._weights[name] for name in found):
            raise ValueError(
                f"A score of {self.owner} needs labels of at least one head of a "
                f"positive weight; those with labels are {list(found)}."
            )

    def _with_labels(self, labels: Any) -> dict[str, tuple[Target, NDArray[Any]]]:
        """Return targets that have labels, and the rows that have them."""
        found = {
            name: (target, np.flatnonzero(target.known(labels[name])))
            for name, target in self.targets.items()
        }
        return {
            name: (target, rows) for name, (target, rows) in found.items() if len(rows)
        }

    def scale(self, labels: Any, weight: NDArray[Any] | None) -> TargetScale | None:
        """Return the scales of the targets, side by side."""
        scales = []
        for name, target in self.targets.items():
            rows = np.flatnonzero(target.known(labels[name]))
            if not len(rows):
                raise ValueError(
                    f"Target {name!r} of {self.owner} has no label in the rows that are "
                    "left to train; those held out have them all. Give 'X_val' and "
                    "'y_val', or more labels."
                )
            some_weight = None if weight is None else weight[rows]
            found = target.scale(take_rows(labels[name], rows), some_weight)
            scales.append(found or TargetScale.none(self._n_logits(name)))
        return TargetScale.joined(scales)

    def scaled(self, labels: Any, scale: TargetScale) -> dict[str, Any]:
        """Return the labels of every head as the network learns them."""
        parts = self._split(scale)
        return {
            name: target.scaled(labels[name], parts[name])
            for name, target in self.targets.items()
        }

    def _split(self, scale: TargetScale) -> dict[str, TargetScale]:
        sizes = [self._n_logits(name) for name in self.targets]
        return dict(zip(self.targets, scale.split(sizes), strict=True))

    def _n_logits(self, name: str) -> int:
        return self.targets[name].head(None, name).logits_dimension


@contextmanager
def _named(name: str) -> Iterator[None]:
    """Let errors say which target they are about."""
    try:
        yield
    except (ValueError, TypeError) as error:
        raise type(error)(f"Target {name!r}: {error}") from error


def _some(
    rows: NDArray[Any],
    predictions: Predictions,
    name: str,
    labels: Any,
    weight: NDArray[Any] | None,
) -> tuple[Predictions, Any, NDArray[Any] | None]:
    """Return predictions, labels and weights of some rows for one head."""
    return (
        take_rows(_of_head(predictions, name), rows),
        take_rows(labels[name], rows),
        None if weight is None else weight[rows],
    )


def _of_head(predictions: Predictions, name: str) -> Predictions:
    return {key: value for (head, key), value in predictions.items() if head == name}
