# SPDX-License-Identifier: Apache-2.0
"""Missing labels of one of several targets."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
import scipy.sparse
import torch
from torch import Tensor

from skest.heads.labels import with_columns
from skest.heads.multi_label import MultiLabelHead, as_cells
from skest.heads.single_task import SingleTaskHead

__all__ = ["encode_with_gaps", "labels_and_known", "whole_ids"]

_LABELS, _KNOWN = "labels", "known"


def encode_with_gaps(
    head: SingleTaskHead, labels: Any, ndim: int | None = 2
) -> Tensor | dict[str, Tensor]:
    """Encode labels of which some may be missing: None, NaN, NaT or pandas.NA.

    A row with several label dimensions is missing if all of them are; where only some
    are, the head decides.

    Parameters
    ----------
    head : SingleTaskHead
        Checks and encodes the labels that are there.
    labels : array-like
        As ``head.encode_labels`` takes them, or a dictionary that this returned. In
        tensors nothing is missing.
    ndim : int or None, default=2
        Dimensions of the logits, as in ``head.encode_labels``.

    Returns
    -------
    Tensor, or dict with the keys "labels" and "known"
        The dictionary if something is missing: the labels have zeros there, and the
        other tensor, of bool and shape (..., 1), has False.

    Raises
    ------
    ValueError, TypeError
        As ``head.encode_labels``.

    Examples
    --------
    >>> from skest.heads.missing import encode_with_gaps
    >>> from skest.heads.multi_class import MultiClassHead
    >>> encode_with_gaps(MultiClassHead(3), [2.0, None])
    {'labels': tensor([[2],
            [0]]), 'known': tensor([[ True],
            [False]])}
    """
    if isinstance(labels, Mapping) and labels.keys() == {_LABELS, _KNOWN}:
        return dict(labels)
    if isinstance(head, MultiLabelHead):
        labels = as_cells(labels)
    array = _as_array(labels)
    if array is not None and head._label_dimension == 1:
        array = with_columns(array, 1, head._title, ndim)
        if array.shape[-1] != 1:  # one column that was left out
            array = array[..., None]
    known = None if array is None else ~_is_missing(array)
    if array is None or known is None or known.all():
        return head.encode_labels(labels, ndim)
    encoded = torch.zeros((*known.shape, head._label_dimension), dtype=torch.int64)
    if known.any():
        values = head.encode_labels(whole_ids(array[known], head))
        encoded = encoded.to(values.dtype)
        encoded[torch.from_numpy(known)] = values
    return {_LABELS: encoded, _KNOWN: torch.from_numpy(known).unsqueeze(-1)}


def labels_and_known(
    encoded: Tensor | Mapping[str, Tensor],
) -> tuple[Tensor, Tensor | None]:
    """Take the result of `encode_with_gaps` apart; None is if nothing is missing."""
    if isinstance(encoded, Mapping):
        return encoded[_LABELS], encoded[_KNOWN]
    return encoded, None


def _as_array(labels: Any) -> np.ndarray | None:
    """Return labels as an array; None if there is none with a place for each label."""
    if labels is None or scipy.sparse.issparse(labels) or isinstance(labels, Tensor):
        return None
    try:
        array = labels.to_numpy() if hasattr(labels, "to_numpy") else np.asarray(labels)
    except ValueError:  # rows of different lengths
        return None
    return array if array.ndim else None


def _is_missing(array: np.ndarray) -> np.ndarray:
    missing = np.asarray(pd.isna(array))
    # Rows without any entry are empty lists of classes.
    return missing if array.ndim == 1 else missing.all(axis=-1) & (array.shape[-1] > 0)


def whole_ids(array: np.ndarray, head: SingleTaskHead) -> np.ndarray:
    """Undo what gaps did to class ids: pandas, polars and NumPy make them floats."""
    if not head._labels_are_ids or array.dtype.kind not in "fO":
        return array
    inferred = pd.Series(array.ravel()).infer_objects()
    if inferred.dtype.kind == "f" and (inferred % 1 == 0).all():
        return inferred.to_numpy().astype(np.int64).reshape(array.shape)
    return array
