# SPDX-License-Identifier: Apache-2.0
"""`ClassTarget` and `LabelsTarget`: one class per row, or any number of them."""

from typing import Any

import numpy as np
import pandas as pd
from pandas.api.types import infer_dtype, is_extension_array_dtype
from scipy.optimize import minimize_scalar
from scipy.sparse import issparse
from scipy.special import log_softmax, logit
from scipy.stats import chi2
from sklearn.metrics import accuracy_score
from sklearn.utils import assert_all_finite
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import column_or_1d

from skest.adapters.targets.base import (
    Predictions,
    Scored,
    Target,
    TargetScale,
    refuse_times,
)
from skest.heads.classification import BinaryClassHead, MultiClassHead, SingleLabelHead
from skest.heads.multi_label import MultiLabelHead
from skest.keys import PredictionKeys

# Position of a class that was not learned, which is never predicted.
_UNKNOWN = -2
# Labels in a message.
_MOST_SHOWN = 10


class ClassTarget(Target):
    """A column of class labels: numbers, strings or booleans.

    Labels are the positions of the classes in `classes`.

    Parameters
    ----------
    owner : str
        The estimator, as messages call it.

    Attributes
    ----------
    classes : ndarray of shape (n_classes,)
        The classes seen in fit, sorted.
    """

    answer_keys = (PredictionKeys.CLASS_IDS,)
    proba_keys = (PredictionKeys.PROBABILITIES,)

    def learn(self, y: Any, *, gaps: bool = False, classes: Any = None) -> None:
        """Learn the classes; `classes` are all of them if `y` may lack some."""
        _, known = self._column(y, gaps)
        check_classification_targets(known)
        # Sorted, as scikit-learn has `classes_`; class 1 of two is the positive one.
        self.classes = np.unique(known if classes is None else np.asarray(classes))
        if len(self.classes) < 2:
            raise ValueError(
                f"{self.owner} needs samples of at least 2 classes in the data, but the "
                f"data contains only one class: {self.classes[0]}. Where the first part "
                "of the data lacks classes, name all with 'classes' (partial_fit, train)."
            )

    def check_classes(self, classes: Any) -> None:
        """Refuse classes that are not those learned; None is fine."""
        if classes is None:
            return
        given = np.unique(np.asarray(classes))
        if not np.array_equal(given, self.classes):
            raise ValueError(
                f"classes={given.tolist()} is not the same as in the first call, where "
                f"it was {self.classes.tolist()}."
            )

    def encode(self, y: Any, *, gaps: bool = False, strict: bool = True) -> np.ndarray:
        """Return the positions of the classes; with gaps as floats, NaN where missing."""
        # Here, and not in `learn`: every fit encodes, and a warm start learns no classes.
        column, known = self._column(y, gaps, warn=True)
        if column.dtype.kind == "O":  # which may hold what cannot be looked up
            check_classification_targets(known)
        # Each distinct label is looked up once.
        codes, labels = pd.factorize(column)
        id_of = {label: i for i, label in enumerate(self.classes.tolist())}
        ids = np.array([id_of.get(label, _UNKNOWN) for label in labels.tolist()], int)
        unknown = [label for label in labels.tolist() if label not in id_of]
        if unknown:  # others are as those that were learned, and checked then
            check_classification_targets(known)
        if unknown and strict:
            raise ValueError(
                f"y contains labels that are not among the classes: {_some(unknown)}; "
                f"the classes are {_some(self.classes.tolist())}. Name all classes in the "
                "first call (classes=...), or fit anew."
            )
        # A float array is the one NumPy type with a mark for a gap.
        if (codes < 0).any():
            # The code of a gap is -1, which finds the last place.
            return np.append(ids, np.nan)[codes]
        return ids[codes]

    def head(
        self, weight_column: str | None, name: str | None = None
    ) -> SingleLabelHead:
        """Return the head for two, or for more classes."""
        # One logit for two classes, as tf.estimator's binary_classification_head has
        # it.
        if len(self.classes) == 2:
            return BinaryClassHead(weight_column=weight_column, name=name)
        return MultiClassHead(len(self.classes), weight_column=weight_column, name=name)

    def answer(self, predictions: Predictions) -> np.ndarray:
        """Return the classes."""
        return self.classes[predictions[PredictionKeys.CLASS_IDS][:, 0]]

    def score(self, rows: Scored) -> float:
        """Return the accuracy."""
        ids = rows.predictions[PredictionKeys.CLASS_IDS][:, 0]
        return float(accuracy_score(rows.labels, ids, sample_weight=rows.weight))

    def calibration(self, rows: Scored) -> TargetScale | None:
        """Return the scale that temperature scaling gives."""
        logits = rows.predictions[PredictionKeys.LOGITS]
        # Among several targets, labels that are missing have made floats of the others.
        temperature = temperature_of(logits, rows.labels.astype(np.int64), rows.weight)
        if temperature == 1:
            return None
        none = TargetScale.none(logits.shape[1])
        return none._replace(scale=none.scale / temperature)

    def best_constant(self, labels: Any, weight: np.ndarray | None) -> TargetScale:
        """Return the scale whose center is the logits of the frequencies."""
        logits = np.log(self._frequencies(labels, weight))
        if len(logits) == 2:
            logits = logits[1:] - logits[:1]
        return TargetScale.none(len(logits))._replace(center=logits)

    def tol_factor(self, labels: Any, weight: np.ndarray | None) -> float:
        """Return less than 1 for rare classes: at a rate of .003 the whole loss is .02.

        Twice the entropy in bits, so that it is 1 above a rate of .11.
        """
        frequency = self._frequencies(labels, weight)
        return float(min(1.0, -2 * frequency @ np.log2(frequency)))

    def _frequencies(self, labels: Any, weight: np.ndarray | None) -> np.ndarray:
        ids = np.asarray(labels).astype(np.int64)
        counts = np.bincount(ids, weight, len(self.classes))
        # A class may be still to come, in another part of the data.
        return np.maximum(counts / counts.sum(), 0.5 / len(ids))

    def _column(
        self, y: Any, gaps: bool, warn: bool = False
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the labels, and those that are there in a type of their own."""
        y = column_or_1d(in_numpy_type(y), warn=warn)
        known = y
        if gaps:
            known = y[~pd.isna(y)]
            if known.dtype.kind == "O":  # gaps hide the type of the others
                known = pd.Series(known).infer_objects().to_numpy()
        _check_labels(known, self.owner)
        return y, known


def in_numpy_type(y: Any) -> Any:
    """Return labels in types of pandas with a gap of their own (Int64, string) in NumPy's.

    In these scikit-learn compares and sorts them.
    """
    if not (hasattr(y, "dtype") and is_extension_array_dtype(y.dtype)):
        return y
    values = pd.Series(y.to_numpy(dtype=object), dtype=object)
    return values.infer_objects().to_numpy()


def _some(labels: list[Any]) -> str:
    """Return the first labels of a list, which may have thousands."""
    more = f", … ({len(labels):,} in all)" if len(labels) > _MOST_SHOWN else ""
    return f"[{', '.join(map(repr, labels[:_MOST_SHOWN]))}{more}]"


def _check_labels(y: np.ndarray, owner: str) -> None:
    """Refuse what np.unique can't sort or would take for classes: dates, gaps, mixtures."""
    refuse_times(y, "no classes. Make numbers or categories of them")
    kind = y.dtype.kind
    if kind == "f":
        assert_all_finite(y, input_name="y")
    elif kind == "O":
        n_missing = int(pd.isna(y).sum())
        if n_missing:
            raise ValueError(
                f"Input y contains NaN: {n_missing} label(s) are missing. Drop these rows."
            )
        if infer_dtype(y) == "interval":
            raise ValueError(
                f"y holds intervals, such as {y[0]}; labels of {owner} must be strings or "
                "numbers. Name them, with pandas.cut(..., labels=[...])."
            )
        are_strings = np.fromiter((isinstance(label, str) for label in y), bool, len(y))
        if are_strings.any() and not are_strings.all():
            text, other = y[are_strings.argmax()], y[are_strings.argmin()]
            raise TypeError(
                f"Labels of {owner} must be all strings or all numbers; y holds {text!r} "
                f"(str) and {other!r} ({type(other).__name__}). Convert them, e.g. with "
                "pandas.Series(y).astype(str)."
            )


class LabelsTarget(Target):
    """A matrix of zeros and ones with a column for each label, dense or sparse.

    Parameters
    ----------
    owner : str
        The estimator, as messages call it.

    Attributes
    ----------
    classes : ndarray of shape (n_labels,)
        Numbers of the columns.
    """

    answer_keys = (PredictionKeys.LOGITS,)
    proba_keys = (PredictionKeys.PROBABILITIES,)

    def learn(self, y: Any, *, gaps: bool = False, classes: Any = None) -> None:
        """Learn the number of labels."""
        self.check_classes(classes)
        n_labels = _matrix(y, self.owner).shape[1]
        if n_labels < 2:
            raise ValueError(
                f"Several labels per row need at least 2 columns of y; {self.owner} got "
                f"{n_labels}. Pass one column as a target of two classes."
            )
        self.classes = np.arange(n_labels)

    def encode(self, y: Any, *, gaps: bool = False, strict: bool = True) -> np.ndarray:
        """Return indicators of shape (n_rows, n_labels); missing rows are NaN."""
        y = _matrix(y, self.owner)
        if y.shape[1] != len(self.classes):
            raise ValueError(
                f"y must have {len(self.classes)} columns, one for each label as in fit; "
                f"{self.owner} got {y.shape[1]}."
            )
        missing = np.isnan(y).all(axis=1) if gaps else np.zeros(len(y), dtype=bool)
        wrong = ~np.isin(y, (0, 1)) & ~missing[:, None]
        if wrong.any():
            row, column = np.argwhere(wrong)[0]
            raise ValueError(
                f"Indicators of labels must be 0 or 1; {self.owner} got "
                f"{y[row, column]} in row {row}, column {column} of y."
                + " Where labels are missing one by one, give each a head of its own."
                * bool(gaps and np.isnan(y[row, column]))
            )
        # A byte for each label, of which there may be thousands; gaps need floats.
        return y if missing.any() else y.astype(np.uint8)

    def head(
        self, weight_column: str | None, name: str | None = None
    ) -> MultiLabelHead:
        """Return the head for as many labels."""
        n_labels = len(self.classes)
        return MultiLabelHead(n_labels, weight_column=weight_column, name=name)

    def answer(self, predictions: Predictions) -> np.ndarray:
        """Return the indicators of shape (n_rows, n_labels)."""
        # The probability exceeds one half.
        return (predictions[PredictionKeys.LOGITS] > 0).astype(int)

    def best_constant(self, labels: Any, weight: np.ndarray | None) -> TargetScale:
        """Return the scale whose center is the logits of the frequencies."""
        mean = np.average(labels, axis=0, weights=weight)
        least = 0.5 / len(labels)  # for a label that is still to come
        logits = logit(np.clip(mean, least, 1 - least))
        return TargetScale.none(len(logits))._replace(center=logits)

    def score(self, rows: Scored) -> float:
        """Return the share of rows of which all labels are right."""
        right = np.equal(rows.labels, self.answer(rows.predictions)).all(axis=1)
        return float(np.average(right, weights=rows.weight))


def as_matrix(y: Any) -> np.ndarray:
    """Return a matrix of labels, a frame or a sparse matrix as an array; gaps are NaN."""
    if issparse(y):
        return y.toarray()
    if isinstance(y, pd.DataFrame):
        try:
            return y.to_numpy(dtype=np.float64, na_value=np.nan)
        except (TypeError, ValueError):  # its values are refused where they are used
            y = y.to_numpy()
    return without_na(np.asarray(y), np.nan)


def without_na(values: np.ndarray, gap: Any) -> np.ndarray:
    """Return objects with `gap` in place of pandas.NA and its like."""
    if values.dtype.kind != "O":
        return values
    return np.where(np.asarray(pd.isna(values)), gap, values)


def _matrix(y: Any, owner: str) -> np.ndarray:
    y = as_matrix(y)
    if y.ndim != 2:
        raise ValueError(
            f"Several labels per row are a matrix of zeros and ones; {owner} got y of "
            f"shape {y.shape}."
        )
    try:
        return y.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"Several labels per row are a matrix of zeros and ones; {owner} got other "
            f"values in y ({error}). Use sklearn.preprocessing.MultiLabelBinarizer."
        ) from error


_RANGE = (-2.0, 2.0)  # of the logarithm
# Twice the log likelihood gained by a number without effect is above this in 5 %.
_LEAST_GAIN = float(chi2.ppf(0.95, 1))


def temperature_of(
    logits: np.ndarray, labels: np.ndarray, weight: np.ndarray | None = None
) -> float:
    """Return the temperature with the least log loss, 1 unless it is clearly better.

    Parameters
    ----------
    logits : ndarray of shape (n_rows, 1) or (n_rows, n_classes)
        One column for two classes.
    labels : ndarray of int, shape (n_rows,)
        Classes.
    weight : ndarray of shape (n_rows,), default=None
        Weights of the rows.

    Returns
    -------
    float
        By which the logits are to be divided.

    Notes
    -----
    Guo et al., "On Calibration of Modern Neural Networks" (ICML 2017, arXiv 1706.04599).
    Few rows would calibrate by chance: the likelihood must rise by more than a number
    without effect makes it rise in 95 % of cases. And rows that are all predicted right
    would ask for no doubt at all, which one wrong row of a test pays for: they do not
    calibrate.

    Examples
    --------
    >>> import numpy as np
    >>> from skest.adapters.targets.classes import temperature_of
    >>> logits = np.repeat([[8.0], [-8.0]], 100, axis=0)  # too sure: 90 % are right
    >>> labels = np.tile([1] * 9 + [0], 20) ^ np.repeat([0, 1], 100)
    >>> round(temperature_of(logits, labels), 2), temperature_of(logits[:9], labels[:9])
    (3.64, 1.0)
    """
    logits = np.asarray(logits, dtype=np.float64)
    if logits.shape[1] == 1:
        # The softmax of 0 and z is the sigmoid of z.
        logits = np.concatenate([np.zeros_like(logits), logits], axis=1)
    rows = np.arange(len(labels))
    weight = np.ones(len(labels)) if weight is None else weight / weight.mean()

    def loss(log_temperature: float) -> float:
        scaled = log_softmax(logits / np.exp(log_temperature), axis=1)
        return -float(weight @ scaled[rows, labels])

    is_wrong = logits[rows, labels] < logits.max(axis=1)
    if not weight[is_wrong].any():  # the loss falls on and on
        return 1.0
    found = minimize_scalar(loss, bounds=_RANGE, method="bounded")
    gained = 2 * (loss(0.0) - float(found.fun))
    return float(np.exp(found.x)) if gained > _LEAST_GAIN else 1.0
