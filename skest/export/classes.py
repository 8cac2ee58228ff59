# SPDX-License-Identifier: Apache-2.0
"""Classes among the outputs of a model: their names, and as they are among the labels."""

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skest.exceptions import ExportError
from skest.heads.base import Head
from skest.heads.classification import SingleLabelHead
from skest.heads.labels import class_names
from skest.heads.multi_head import MultiHead
from skest.heads.multi_label import MultiLabelHead
from skest.keys import PredictionKeys

#: Key of the answer in the type of the labels; of several labels, their indicators.
LABELS = "labels"

_OF_CLASSES = (PredictionKeys.CLASS_IDS, PredictionKeys.PROBABILITIES)


def with_class_outputs(
    head: Head, predictions: Mapping[str, NDArray[Any]], classes: Any = None
) -> dict[str, NDArray[Any]]:
    """Return predictions with what belongs to those of classes, not from the head.

    Parameters
    ----------
    head : Head
        One of `skest.heads`.
    predictions : dict of str to ndarray
        By the keys of the head; of a `MultiHead`, "<head>/<key>".
    classes : array-like of shape (n_classes,), default=None
        The classes in the type of the labels, in the order of their ids, if the head does
        not name them itself; of a `MultiHead`, a dictionary by head.

    Raises
    ------
    ExportError
        If predictions of classes lack their ids or probabilities.

    Examples
    --------
    >>> import numpy as np
    >>> from skest.export.classes import with_class_outputs
    >>> from skest.heads import BinaryClassHead
    >>> found = {"class_ids": np.array([[1]]), "probabilities": np.array([[0.2, 0.8]])}
    >>> with_class_outputs(BinaryClassHead(), found, ["no", "yes"])["all_classes"]
    array([['no', 'yes']], dtype=object)
    """
    if isinstance(head, MultiHead):
        found = dict(predictions)
        for part in head.heads:
            prefix = f"{part.name}/"
            own = {
                key.removeprefix(prefix): values
                for key, values in predictions.items()
                if key.startswith(prefix)
            }
            named = with_class_outputs(part, own, (classes or {}).get(part.name))
            found |= {f"{prefix}{key}": values for key, values in named.items()}
        return found
    if isinstance(head, MultiLabelHead):
        logits = predictions[PredictionKeys.LOGITS]
        names = np.tile(class_texts(head, classes), (len(logits), 1))
        labels = (logits > 0).astype(np.int64)
        return {**predictions, PredictionKeys.CLASSES: names, LABELS: labels}
    if isinstance(head, SingleLabelHead):
        return {**predictions, **_of_one_class(head, predictions, classes)}
    return dict(predictions)


def _of_one_class(
    head: SingleLabelHead, predictions: Mapping[str, NDArray[Any]], classes: Any
) -> dict[str, NDArray[Any]]:
    check_has_classes(head, predictions)
    ids, names = predictions[PredictionKeys.CLASS_IDS], class_texts(head, classes)
    found = {
        PredictionKeys.CLASSES: names[ids],
        LABELS: class_labels(head, classes)[ids],
    }
    best = predictions.get(PredictionKeys.TOP_K_CLASS_IDS)
    if best is not None:  # there are too many for all
        return found | {PredictionKeys.TOP_K_CLASSES: names[best]}
    every = np.arange(head.n_classes, dtype=np.int32)
    return found | {
        PredictionKeys.ALL_CLASS_IDS: np.tile(every, (len(ids), 1)),
        PredictionKeys.ALL_CLASSES: np.tile(names, (len(ids), 1)),
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
    """Return the names of the classes as strings; `classes` as in `with_class_outputs`."""
    if classes is None:
        return class_names(head.label_vocabulary, head.n_classes)
    return np.array([str(label) for label in _given(head, classes).tolist()], object)


def class_labels(head: Any, classes: Any) -> NDArray[Any]:
    """Return the classes as they are among the labels; see `with_class_outputs`."""
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
