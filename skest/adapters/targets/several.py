# SPDX-License-Identifier: Apache-2.0
"""`SeveralTargets`: targets of different kinds, one head each."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pandas as pd
from scipy.sparse import issparse

from skest.adapters.targets.base import Predictions, Scored, Target, TargetScale
from skest.feature_columns.sources import is_frame
from skest.feature_columns.table import Table
from skest.heads.multi_head import MultiHead
from skest.inputs.array_dataset import take_rows


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
        # Answers come back as y came: a frame for a frame, of its own library.
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
            # A head for one column is used like a classifier, whose `partial_fit` takes
            # an array.
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
        # Several columns of one head are labels side by side, or outputs of one regression.
        return {
            name: columns[some[0]]
            if len(some) == 1
            else np.column_stack([columns[column] for column in some])
            for name, some in self._columns.items()
        }

    def head(self, weight_column: str | None, name: str | None = None) -> MultiHead:
        """Return the heads of the targets as one."""
        heads: list[Any] = [t.head(weight_column, n) for n, t in self.targets.items()]
        # tf.estimator.MultiHead: one network, the losses weighed and added.
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

    def score(self, rows: Scored) -> float:
        """Return the weighted mean of the scores of the heads that have labels."""
        scores = {  # each over the rows that have its label, if they are enough
            name: target.score(_part(rows, name, known))
            for name, (target, known) in self._with_labels(rows.labels).items()
            if len(known) >= target.fewest_scored
        }
        factors = [self._weights[name] for name in scores]
        if not any(factors):
            raise ValueError(
                f"A score of {self.owner} needs labels of at least one head of a "
                "positive weight, and two of one for numbers; heads with enough are "
                f"{list(scores)}."
            )
        return float(np.average(list(scores.values()), weights=factors))

    @property
    def validation_keys(self) -> list[Any]:
        """Predictions that the validation score is computed from."""
        return self._keys("loss_keys")

    def validation_score(self, rows: Scored, scale: TargetScale | None = None) -> float:
        """Return minus the weighted sum of the losses, each in the units of training.

        A loss is the mean over the rows that have the label.
        """
        parts = dict.fromkeys(self.targets) if scale is None else self._split(scale)
        # As training sums them, and in its units: of numbers in the units of `y`, the
        # head with the largest would decide.
        losses = [
            self._weights[name]
            * target.mean_loss(_part(rows, name, known), parts[name], name)
            for name, (target, known) in self._with_labels(rows.labels).items()
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

    def _with_labels(self, labels: Any) -> dict[str, tuple[Target, np.ndarray]]:
        """Return targets that have labels, and the rows that have them."""
        found = {
            name: (target, np.flatnonzero(target.known(labels[name])))
            for name, target in self.targets.items()
        }
        return {
            name: (target, rows) for name, (target, rows) in found.items() if len(rows)
        }

    def scale(self, labels: Any, weight: np.ndarray | None) -> TargetScale | None:
        """Return the scales of the targets, side by side."""
        return self._of_each("scale", labels, weight)

    def best_constant(
        self, labels: Any, weight: np.ndarray | None
    ) -> TargetScale | None:
        """Return those of the targets, side by side."""
        return self._of_each("best_constant", labels, weight)

    def _of_each(
        self, method: str, labels: Any, weight: np.ndarray | None
    ) -> TargetScale:
        scales: dict[str, TargetScale | None] = {}
        for name, target in self.targets.items():
            rows = np.flatnonzero(target.known(labels[name]))
            if not len(rows):
                raise ValueError(
                    f"Target {name!r} of {self.owner} has no label in the rows that are "
                    "left to train; those held out have them all. Give 'X_val' and "
                    "'y_val', or more labels."
                )
            some_weight = None if weight is None else weight[rows]
            some_labels = take_rows(labels[name], rows)
            scales[name] = getattr(target, method)(some_labels, some_weight)
        return self._joined(scales)

    def widened(self, scale: TargetScale, labels: Any) -> TargetScale:
        """Return a scale whose ranges of predictions hold the known labels, too."""
        parts = self._split(scale)
        for name, target in self.targets.items():
            rows = np.flatnonzero(target.known(labels[name]))
            # A part of the data, as `partial_fit` is given, may have no label of a
            # head.
            if len(rows):
                known = take_rows(labels[name], rows)
                parts[name] = target.widened(parts[name], known)
        return TargetScale.joined(list(parts.values()))

    def scaled(self, labels: Any, scale: TargetScale) -> dict[str, Any]:
        """Return the labels of every head as the network learns them."""
        parts = self._split(scale)
        return {
            name: target.scaled(labels[name], parts[name])
            for name, target in self.targets.items()
        }

    def calibration(self, rows: Scored) -> TargetScale | None:
        """Return the scales of the logits that the targets ask for, side by side."""
        found = {
            name: target.calibration(_part(rows, name, known))
            for name, (target, known) in self._with_labels(rows.labels).items()
        }
        # Only classes have a temperature; the numbers beside them stay as they are.
        return self._joined(found) if any(found.values()) else None

    def _joined(self, scales: Mapping[str, TargetScale | None]) -> TargetScale:
        # Side by side as the logits are, so each logit needs an entry.
        return TargetScale.joined(
            [
                scales.get(name) or TargetScale.none(self._n_logits(name))
                for name in self.targets
            ]
        )

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
        # In the same class: scikit-learn's checks, and `pytest.raises` of users, ask
        # for it.
        raise type(error)(f"Target {name!r}: {error}") from error


def _part(rows: Scored, name: str, known: np.ndarray) -> Scored:
    """Return those of the rows that have a label of one head."""
    return Scored(
        take_rows(_of_head(rows.predictions, name), known),
        take_rows(rows.labels[name], known),
        None if rows.weight is None else rows.weight[known],
        None if rows.features is None else take_rows(rows.features, known),
    )


def _of_head(predictions: Predictions, name: str) -> Predictions:
    return {key: value for (head, key), value in predictions.items() if head == name}


_ONLY = "y"


def columns_of(y: Any) -> dict[Any, Any]:
    """Return the columns of `y` by name.

    Columns of an array are called "y0", "y1" and so on; one of one dimension has its own
    name, or is called "y". A dictionary may hold matrices.
    """
    if isinstance(y, Mapping):
        # Indicators of labels may come sparse; their columns are few, and heads take
        # arrays.
        y = {k: v.toarray() if issparse(v) else v for k, v in y.items()}
    if isinstance(y, Mapping) or is_frame(y):
        table = Table(y)
        return {key: table.cells(key) for key in table.keys}
    # Columns of an array get names: tf.estimator's MultiHead, too, asks for unique ones.
    array = y.toarray() if issparse(y) else np.asarray(y)
    if array.ndim == 1:
        name = getattr(y, "name", None)
        return {_ONLY if name is None else name: y if hasattr(y, "iloc") else array}
    if array.ndim != 2:
        raise ValueError(
            "y must be a DataFrame, a dictionary of arrays, or an array of one or two "
            f"dimensions; got shape {array.shape}."
        )
    return {f"{_ONLY}{i}": array[:, i] for i in range(array.shape[1])}


class TargetForm:
    """The form of the `y` of a fit, for answers of the same form."""

    def __init__(self, y: Any) -> None:
        # Heads that are given by name may be in another order than the columns of `y`.
        self._order = list(columns_of(y))
        self._is_dict = isinstance(y, Mapping)
        self.is_column = not self._is_dict and not is_frame(y) and np.ndim(y) == 1
        self._frame: Any = None  # the library of a frame
        if is_frame(y):
            self._frame = "pandas"
            if not isinstance(y, pd.DataFrame):
                import narwhals.stable.v2 as nw

                # Its name alone, so that a pickle of the estimator needs no polars to
                # be read.
                self._frame = nw.from_native(y, eager_only=True).implementation.value

    def like_y(
        self, answers: Mapping[str, np.ndarray], columns: Mapping[str, Sequence[Any]]
    ) -> Any:
        """Return the answers of targets, which read `columns`, in the form of `y`."""
        if self._is_dict:
            return dict(answers)
        # A head with several columns gives a matrix, which is taken apart to these
        # again.
        found: dict[Any, np.ndarray] = {}
        for name, some in columns.items():
            parts = [answers[name]] if len(some) == 1 else answers[name].T
            found |= dict(zip(some, parts, strict=True))
        found = {column: found[column] for column in self._order if column in found}
        if self._frame == "pandas":
            return pd.DataFrame(found)
        if self._frame is not None:
            import narwhals.stable.v2 as nw

            return nw.from_dict(found, backend=self._frame).to_native()
        if self.is_column:
            return next(iter(found.values()))
        # NumPy would turn numbers beside strings into strings.
        kinds = {values.dtype.kind for values in found.values()}
        is_mixed = bool(kinds & set("OUS")) and len(kinds) > 1
        return np.column_stack(
            [v.astype(object) if is_mixed else v for v in found.values()]
        )
