# SPDX-License-Identifier: Apache-2.0
"""Classes among the outputs of a model: their names, and as they are among the labels."""

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from skest.exceptions import ExportError
from skest.heads.base import Head
from skest.heads.labels import class_names
from skest.heads.multi_head import MultiHead
from skest.heads.multi_label import MultiLabelHead
from skest.heads.single_label import SingleLabelHead
from skest.keys import PredictionKeys

__all__ = [
    "LABELS",
    "ClassOutput",
    "check_has_classes",
    "class_labels",
    "class_outputs",
    "class_texts",
    "with_class_outputs",
]

#: Key of the answer in the type of the labels; of several labels, their indicators.
LABELS = "labels"

_OF_CLASSES = (PredictionKeys.CLASS_IDS, PredictionKeys.PROBABILITIES)


class ClassOutput(NamedTuple):
    """An output that follows from another one.

    Attributes
    ----------
    kind : {"taken", "repeated", "positive"}
        Elements of `values` at the ids that `source` has; `values` in every row; or 1
        where `source` is above 0, else 0.
    source : str
        The other output.
    values : ndarray of shape (n_classes,)
        Something for each class.
    """

    kind: str
    source: str
    values: NDArray[Any]

    def of(self, outputs: Mapping[str, NDArray[Any]]) -> NDArray[Any]:
        """Return the output, as an array with a row for each one of `source`.

        Examples
        --------
        >>> import numpy as np
        >>> from skest.export.classes import ClassOutput
        >>> names = np.array(["no", "yes"], dtype=object)
        >>> ClassOutput("taken", "ids", names).of({"ids": np.array([[1], [0]])})
        array([['yes'],
               ['no']], dtype=object)
        """
        source = outputs[self.source]
        if self.kind == "taken":
            return self.values[source]
        if self.kind == "positive":
            return (source > 0).astype(self.values.dtype)
        return np.tile(self.values, (len(source), 1))


def class_outputs(
    head: Head, predictions: Collection[str], classes: Any = None
) -> dict[str, ClassOutput]:
    """Return what belongs to predictions that have the keys of a head, not from it.

    Parameters
    ----------
    head : Head
        One of `skest.heads`.
    predictions : collection of str
        Keys of those that there are; of a `MultiHead`, "<head>/<key>".
    classes : array-like of shape (n_classes,), default=None
        The classes in the type of the labels, in the order of their ids, if the head does
        not name them itself; of a `MultiHead`, a dictionary by head.

    Returns
    -------
    dict of str to ClassOutput
        By key. Nothing for numbers.

    Raises
    ------
    ExportError
        If predictions of classes lack their ids or probabilities.

    Examples
    --------
    >>> from skest.export.classes import class_outputs
    >>> from skest.heads import BinaryClassHead
    >>> head = BinaryClassHead()
    >>> found = class_outputs(head, ["class_ids", "probabilities"], [10, 20])
    >>> list(found), found["labels"].values
    (['classes', 'labels', 'all_class_ids', 'all_classes'], array([10, 20]))
    """
    if isinstance(head, MultiHead):
        found: dict[str, ClassOutput] = {}
        for part in head.heads:
            prefix = f"{part.name}/"
            own = [k.removeprefix(prefix) for k in predictions if k.startswith(prefix)]
            given = (classes or {}).get(part.name)
            for key, output in class_outputs(part, own, given).items():
                source = f"{prefix}{output.source}"
                found[f"{prefix}{key}"] = output._replace(source=source)
        return found
    if isinstance(head, MultiLabelHead):
        logits, zeros = PredictionKeys.LOGITS, np.zeros(head.n_classes, np.int64)
        return {
            PredictionKeys.CLASSES: ClassOutput(
                "repeated", logits, class_texts(head, classes)
            ),
            LABELS: ClassOutput("positive", logits, zeros),
        }
    if isinstance(head, SingleLabelHead):
        return _of_one_class(head, predictions, classes)
    return {}


def with_class_outputs(
    head: Head, predictions: Mapping[str, NDArray[Any]], classes: Any = None
) -> dict[str, NDArray[Any]]:
    """Return predictions with what `class_outputs` says that belongs to them.

    Examples
    --------
    >>> import numpy as np
    >>> from skest.export.classes import with_class_outputs
    >>> from skest.heads import BinaryClassHead
    >>> found = {"class_ids": np.array([[1]]), "probabilities": np.array([[0.2, 0.8]])}
    >>> with_class_outputs(BinaryClassHead(), found, ["no", "yes"])["all_classes"]
    array([['no', 'yes']], dtype=object)
    """
    outputs = class_outputs(head, predictions, classes)
    return {**predictions, **{key: o.of(predictions) for key, o in outputs.items()}}


def _of_one_class(
    head: SingleLabelHead, predictions: Collection[str], classes: Any
) -> dict[str, ClassOutput]:
    check_has_classes(head, predictions)
    ids, names = PredictionKeys.CLASS_IDS, class_texts(head, classes)
    found = {
        PredictionKeys.CLASSES: ClassOutput("taken", ids, names),
        LABELS: ClassOutput("taken", ids, class_labels(head, classes)),
    }
    if PredictionKeys.TOP_K_CLASS_IDS in predictions:  # there are too many for all
        of_best = ClassOutput("taken", PredictionKeys.TOP_K_CLASS_IDS, names)
        return found | {PredictionKeys.TOP_K_CLASSES: of_best}
    every = np.arange(head.n_classes, dtype=np.int32)
    return found | {
        PredictionKeys.ALL_CLASS_IDS: ClassOutput("repeated", ids, every),
        PredictionKeys.ALL_CLASSES: ClassOutput("repeated", ids, names),
    }


def check_has_classes(head: Head, predictions: Collection[str]) -> None:
    """Raise ExportError if a classifier lacks predictions that its signatures have."""
    wanted = _OF_CLASSES if isinstance(head, SingleLabelHead) else ()
    missing = [key for key in wanted if key not in predictions]
    if missing:
        raise ExportError(
            f"The predictions lack {' and '.join(map(repr, missing))}, which the "
            "signatures of a classifier have. Return 'logits' or 'probabilities'."
        )


def class_texts(head: Any, classes: Any) -> NDArray[Any]:
    """Return the names of the classes as strings; `classes` as in `class_outputs`."""
    if classes is None:
        return class_names(head.label_vocabulary, head.n_classes)
    return np.array([str(label) for label in _given(head, classes).tolist()], object)


def class_labels(head: Any, classes: Any) -> NDArray[Any]:
    """Return the classes in the type of the labels; `classes` as in `class_outputs`."""
    if classes is None:
        names = head.label_vocabulary is not None
        return class_texts(head, None) if names else np.arange(head.n_classes)
    labels = _given(head, classes)
    return labels if labels.dtype.kind in "biuf" else class_texts(head, classes)


def _given(head: Any, classes: Any) -> NDArray[Any]:
    labels = np.asarray(classes)
    if labels.shape != (head.n_classes,):
        raise ValueError(
            f"'classes' must have one class for each of the {head.n_classes} of "
            f"{head!r}; got an array of shape {labels.shape}."
        )
    return labels
