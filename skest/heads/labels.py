# SPDX-License-Identifier: Apache-2.0
"""Raw labels and weights of examples to checked arrays, on the host."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeVar, runtime_checkable

import numpy as np
import pandas as pd
import scipy.sparse
import torch
from torch import Tensor

from skest.feature_columns.table import Table

_Labels = TypeVar("_Labels", np.ndarray, Tensor)


def check_vocabulary(vocabulary: Any, n_classes: int, owner: str) -> None:
    """Raise unless the vocabulary is None or a sequence of `n_classes` distinct strings.

    Parameters
    ----------
    vocabulary : object
        What the user gave.
    n_classes : int
        Number of classes.
    owner : str
        Whose parameter it is, for the message.

    Raises
    ------
    ValueError
        If it is a single string, has another length, or names a class twice.
    TypeError
        If a class is no string.
    """
    if vocabulary is None:
        return
    if isinstance(vocabulary, str | bytes) or not isinstance(
        vocabulary, Sequence | np.ndarray
    ):
        raise ValueError(
            f"'label_vocabulary' of {owner} must be a list of strings; "
            f"got {vocabulary!r}."
        )
    # As tf.estimator, whose lookup tables are of strings: integers would be ids
    # already.
    other = [name for name in vocabulary if not isinstance(name, str)]
    if other:
        raise TypeError(
            f"'label_vocabulary' of {owner} must hold strings; got {other[0]!r}. "
            "Without a vocabulary, labels are class ids from 0."
        )
    if len(vocabulary) != n_classes:
        raise ValueError(
            f"'label_vocabulary' of {owner} must name its {n_classes} classes; "
            f"got {len(vocabulary)} names."
        )
    if len(set(vocabulary)) != n_classes:
        twice = next(name for name, n in Counter(vocabulary).items() if n > 1)
        raise ValueError(
            f"'label_vocabulary' of {owner} names a class twice: {str(twice)!r}."
        )


def class_names(vocabulary: Sequence[str] | None, n_classes: int) -> np.ndarray:
    """Return the names of the classes, decimal numbers if there is no vocabulary.

    Returns
    -------
    ndarray of str, shape (n_classes,), dtype object
    """
    # Decimal strings, as in tf.estimator: "classes" of a served model are always
    # strings.
    names = map(str, range(n_classes)) if vocabulary is None else vocabulary
    return np.array(list(names), dtype=object)


def check_given(labels: Any, owner: str) -> None:
    """Raise ValueError if there are no labels."""
    if labels is None:
        raise ValueError(
            f"{owner} needs labels to train or evaluate; got None. Let input_fn return "
            "pairs (features, labels)."
        )


def check_dense(labels: Any, owner: str) -> None:
    """Raise ValueError if there are no labels or they are sparse."""
    check_given(labels, owner)
    is_tensor = isinstance(labels, Tensor)  # as in every training step
    if labels.layout != torch.strided if is_tensor else scipy.sparse.issparse(labels):
        raise ValueError(
            f"{owner} does not take sparse labels; got {type(labels).__name__}. Pass a "
            "dense array, for instance labels.toarray()."
        )


def dense_array(labels: Any, owner: str) -> np.ndarray:
    """Return labels as an array, whatever they came in.

    Parameters
    ----------
    labels : array-like, Series, one-column DataFrame or Tensor
        What the user gave.
    owner : str
        Who needs them, for the message.

    Returns
    -------
    ndarray of any shape but ()

    Raises
    ------
    ValueError
        If there are none, they are sparse, or rows differ in length.
    TypeError
        If they are a mapping.
    """
    check_dense(labels, owner)
    if isinstance(labels, Mapping):
        raise TypeError(
            f"{owner} takes one array of labels; got a dictionary of {list(labels)}."
        )
    if isinstance(labels, Tensor):
        return labels.detach().cpu().numpy()
    try:
        array = labels.to_numpy() if hasattr(labels, "to_numpy") else np.asarray(labels)
    except ValueError as error:
        raise ValueError(
            f"{owner} got labels of unequal row lengths: {error}"
        ) from None
    if array.ndim == 0:
        raise ValueError(
            f"{owner} takes labels with one row per example; got {labels!r}."
        )
    return array


def with_columns(
    array: np.ndarray, n_columns: int, owner: str, ndim: int | None = 2
) -> np.ndarray:
    """Return labels of shape (..., n_columns); one column may be left out.

    Parameters
    ----------
    array : ndarray
        Raw labels.
    n_columns : int
        Label dimension of the head.
    owner : str
        The head, for the message.
    ndim : int or None, default=2
        Dimensions of the logits. If they are not known yet, one column that may have been
        left out of labels of two dimensions or more is left to `matched_labels`.

    Raises
    ------
    ValueError
        If the last dimension differs.
    """
    # Keras and tf.estimator take (n,) and (n, 1) for the same.
    if n_columns == 1:
        # (n,) for logits (n, 1), and (n, n_steps) for logits (n, n_steps, 1).
        if array.ndim == (1 if ndim is None else ndim - 1):
            return array[..., None]
        if ndim is None:
            return array
    if array.ndim < 2 or array.shape[-1] != n_columns:
        rows = "..." if ndim is not None and ndim > 2 else "n"
        raise ValueError(
            f"{owner} needs labels of shape ({rows}, {n_columns}); got {array.shape}. "
            f"{_shape_hint(n_columns)}"
        )
    return array


def matched_labels(
    labels: _Labels, outputs: Tensor, n_columns: int, owner: str, what: str = "logits"
) -> _Labels:
    """Return labels of shape (..., n_columns) for outputs of shape (..., n_outputs).

    Parameters
    ----------
    labels : ndarray or Tensor
        A last dimension of 1 may be left out.
    outputs : Tensor
        What the network gave for the same rows.
    n_columns : int
        Label dimension of the head.
    owner : str
        The head, for the message.
    what : str, default="logits"
        What the outputs are, for the message.

    Raises
    ------
    ValueError
        If the shapes don't match.
    """
    # Here the dimensions of the outputs are known, as `with_columns` may not have them.
    if n_columns == 1 and labels.ndim == outputs.ndim - 1:
        labels = labels[..., None]
    expected = (*outputs.shape[:-1], n_columns)
    # (n, 1) and (n,) would broadcast to (n, n), and a model would train on nonsense.
    if tuple(labels.shape) != expected:
        hint = "" if labels.shape[-1] == n_columns else f" {_shape_hint(n_columns)}"
        raise ValueError(
            f"{owner} needs labels of shape {expected} for {what} of shape "
            f"{tuple(outputs.shape)}; got {tuple(labels.shape)}.{hint}"
        )
    return labels


def _shape_hint(n_columns: int) -> str:
    if n_columns == 1:
        return (
            "Pass class ids rather than one column per class, or use MultiLabelHead for "
            "several labels at once, a head with 'label_dimension' for several numbers."
        )
    return "Check the number of classes or of label dimensions of the head."


def is_text(array: np.ndarray) -> bool:
    """Tell whether the values are strings or bytes, with or without missing ones."""
    if array.dtype.kind in "US":
        return True
    # pandas looks at every value, in C; a column may begin with None.
    return array.dtype.kind == "O" and pd.api.types.infer_dtype(
        array.ravel(), skipna=True
    ) in ("string", "bytes")


def vocabulary_ids(
    array: np.ndarray, vocabulary: pd.Index | None, owner: str
) -> np.ndarray:
    """Replace strings by their places in the vocabulary; without one, do nothing.

    Parameters
    ----------
    array : ndarray of any shape
        Class names, str or UTF-8 bytes; or class ids if there is no vocabulary.
    vocabulary : Index of str, or None
        Names of the classes, in the order of their ids.
    owner : str
        Who asks, for the message.

    Returns
    -------
    ndarray of the same shape
        int64 ids, or `array` itself.

    Raises
    ------
    TypeError
        If there is a vocabulary, but the values are not strings.
    ValueError
        If a value is not in the vocabulary, or there are strings but no vocabulary.
    """
    if vocabulary is None:
        if is_text(array):
            raise ValueError(
                f"{owner} takes class ids; got strings such as {first(array)}. Name the "
                "classes with 'label_vocabulary'."
            )
        return array
    # An empty batch is of no type, so it can't be of the wrong one.
    if array.size == 0:
        return array.astype(np.int64)
    if not is_text(array):
        raise TypeError(
            f"{owner} has a 'label_vocabulary', so its labels must be strings; got "
            f"{first(array)} of dtype {array.dtype}. Pass class names, or leave out the "
            "vocabulary."
        )
    names = array.ravel()
    # tf.string is bytes, and so are strings that come out of TFRecords.
    if isinstance(names[0], bytes):
        names = np.char.decode(names.astype("S"), "utf-8")
    # -1 stands for what is not in the index.
    ids = vocabulary.get_indexer(pd.Index(names.astype(object)))
    unknown = ids < 0
    if unknown.any():
        listed = ", ".join(repr(str(name)) for name in vocabulary[:10])
        raise ValueError(
            f"{owner} got the label {first(names[unknown])}, which is not in its "
            f"'label_vocabulary': {listed}{', …' if len(vocabulary) > 10 else ''}."
        )
    return ids.astype(np.int64).reshape(array.shape)


def vocabulary_index(vocabulary: Sequence[str] | None) -> pd.Index | None:
    """Return the names as an index for `vocabulary_ids`, None if there are none."""
    if vocabulary is None:
        return None
    return pd.Index(np.array(list(vocabulary), dtype=object))


def numbers(array: np.ndarray, owner: str) -> np.ndarray:
    """Return numbers as int64, float32 or float64.

    Raises
    ------
    TypeError
        If the values are no real numbers.
    """
    kind: str = array.dtype.kind
    if kind == "O":
        # With a None among them they are no numbers; NaN is one, which heads refuse.
        kind = pd.api.types.infer_dtype(array.ravel(), skipna=False)
    # Kinds of NumPy, or the words of pandas for what objects are.
    if kind in ("b", "i", "u", "boolean", "integer"):
        return array.astype(np.int64)
    if kind in ("f", "floating", "mixed-integer-float"):
        # What is wider than float32 keeps its digits until it meets the logits.
        narrow = array.dtype.kind == "f" and array.dtype.itemsize <= 4
        return array.astype(np.float32 if narrow else np.float64)
    raise TypeError(
        f"{owner} needs labels that are numbers; got {first(array)} of dtype "
        f"{array.dtype}."
    )


def check_range(array: np.ndarray, highest: int, owner: str, meaning: str) -> None:
    """Raise ValueError unless all values are in [0, highest]; NaN is not."""
    # Negated, for NaN compares as false.
    wrong = ~((array >= 0) & (array <= highest))
    if wrong.any():
        place = f" in row {np.argwhere(wrong)[0][0]}" if array.ndim > 1 else ""
        raise ValueError(
            f"{owner} needs labels in [0, {highest}], {meaning}; got "
            f"{first(array[wrong])}{place}."
        )


def first(array: np.ndarray) -> str:
    """Return how a message shows the first value: '1', not np.int64(1)."""
    return repr(array.ravel()[:1].tolist()[0])


def as_tensor(array: np.ndarray, labels: Any) -> Tensor:
    """Return a tensor with its own memory, on the device where the labels came from."""
    device = labels.device if isinstance(labels, Tensor) else None
    # Copied: what is trained on must not change with the user's array.
    return torch.tensor(np.ascontiguousarray(array), device=device)


@runtime_checkable
class WeightColumn(Protocol):
    """What a head asks of a column that computes weights; a `NumericColumn` is one."""

    @property
    def feature_keys(self) -> tuple[Any, ...]:
        """Keys of the raw columns that it reads."""

    def encode(self, X: Any) -> Mapping[str, np.ndarray]:
        """Return the weights as the only value of a dictionary."""


def encode_weights(features: Any, column: str | WeightColumn, owner: str) -> Tensor:
    """Read the weights from raw features and check them.

    Parameters
    ----------
    features : DataFrame, or dict of arrays or tensors
        Raw features. A tensor is taken as it is, without a look at its values.
    column : str or WeightColumn
        Where the weights are.
    owner : str
        The head, for the message.

    Returns
    -------
    Tensor of numbers, shape (n,), (n, 1) or as it came

    Raises
    ------
    ValueError
        If the column is missing or has a value that is not finite.
    TypeError
        If the values are not numbers.
    """
    needed = (column,) if isinstance(column, str) else column.feature_keys
    if features is None:
        present: list[Any] = []
    else:
        is_dict = isinstance(features, Mapping)
        present = list(features) if is_dict else Table(features).keys
    for key in needed:
        if key not in present:
            raise ValueError(
                f"{owner} needs its weight_column {key!r} among the features to train "
                f"or evaluate; got {', '.join(map(repr, present[:12])) or 'none'}."
            )
    if isinstance(column, str):
        # Its values may be on a device, which a check would wait for.
        if isinstance(features, Mapping) and isinstance(features[column], Tensor):
            return features[column]
        values = Table(features).column(column)
    else:
        # With its normalizer_fn, as weight columns of tf.estimator have.
        (values,) = column.encode(features).values()
    if values.dtype.kind not in "biuf":
        raise TypeError(
            f"Weights of {owner}, column {needed[0]!r}, must be numbers; got "
            f"{first(values)} of dtype {values.dtype}."
        )
    # Negative ones pass, as in tf.estimator.
    finite = np.isfinite(values)
    if not finite.all():
        row = int(np.argwhere(~finite)[0][0])
        raise ValueError(
            f"Weights of {owner}, column {needed[0]!r}, must be finite; got "
            f"{values[~finite][0]} in row {row}."
        )
    return torch.tensor(values)
