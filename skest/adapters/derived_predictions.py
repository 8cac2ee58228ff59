# SPDX-License-Identifier: Apache-2.0
"""Predictions that follow from those of a user's model function."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from skest.keys import PredictionKeys

__all__ = [
    "DerivedPredictions",
    "class_predictions",
    "label_predictions",
    "number_predictions",
]

_LOGITS, _LOGISTIC = PredictionKeys.LOGITS, PredictionKeys.LOGISTIC
_PROBABILITIES = PredictionKeys.PROBABILITIES
_CLASS_IDS = PredictionKeys.CLASS_IDS
_NUMBERS = PredictionKeys.PREDICTIONS


class DerivedPredictions:
    """The predictions of a model function, completed.

    Parameters
    ----------
    own : callable or None
        ``own(logits) -> dict``, as in `skest.EstimatorSpec`.
    derive : callable
        From these to those that follow from them: one of the functions below.

    Examples
    --------
    >>> import torch
    >>> from functools import partial
    >>> from skest.adapters.derived_predictions import *
    >>> predictions = DerivedPredictions(
    ...     lambda logits: {"logits": logits}, partial(class_predictions, n_classes=3)
    ... )
    >>> predictions(torch.tensor([[0.0, 2.0, 1.0]]), ["class_ids"])["class_ids"]
    tensor([[1]])
    """

    def __init__(
        self,
        own: Callable[[Any], Mapping[str, Any]] | None,
        derive: Callable[[Mapping[str, Any]], dict[str, Tensor]],
    ) -> None:
        self._own = own
        self._derive = derive

    def __call__(
        self, logits: Any, keys: Sequence[str] | None = None
    ) -> dict[str, Any]:
        """Return all predictions; an error says if one of `keys` does not follow."""
        if self._own is None:
            raise ValueError(
                "Early stopping scores the network while it is trained, but model_fn "
                "returns no 'predictions' in mode 'train'. Return them in all modes."
            )
        own = self._own(logits)
        if not isinstance(own, Mapping):
            raise TypeError(
                "'predictions' of model_fn must return a dictionary; got "
                f"{type(own).__name__}."
            )
        found = {**own, **self._derive(own)}
        missing = [key for key in keys or () if key not in found]
        if missing:
            raise ValueError(
                f"{' and '.join(map(repr, missing))} cannot be told from the predictions "
                f"of model_fn, which are {', '.join(map(repr, own)) or 'none'}. For "
                f"classes and labels, return {_LOGITS!r} or {_PROBABILITIES!r}; for "
                f"numbers, {_NUMBERS!r}."
            )
        return found


def class_predictions(own: Mapping[str, Any], n_classes: int) -> dict[str, Tensor]:
    """Return class ids, probabilities and logits, as far as they follow.

    Parameters
    ----------
    own : dict
        It may have "logits" of shape (n, n_classes), "probabilities" of this shape and
        "class_ids" of shape (n,) or (n, 1). For two classes, logits and probabilities may
        also be those of the second class, of shape (n,) or (n, 1), and the latter be
        called "logistic".
    n_classes : int
        At least 2.

    Returns
    -------
    dict of Tensor
        "logits" of shape (n, n_classes), or (n, 1) for two classes; "probabilities" of
        shape (n, n_classes); "class_ids" of shape (n, 1).

    Raises
    ------
    ValueError
        If a shape is wrong.
    """
    widths = {n_classes} if n_classes > 2 else {1, 2}
    ids = _matrix(own, _CLASS_IDS, {1}) if _CLASS_IDS in own else None
    logits = _matrix(own, _LOGITS, widths) if _LOGITS in own else None
    probabilities = _given_probabilities(own, widths)
    if probabilities is None:
        if logits is None:
            return {} if ids is None else {_CLASS_IDS: ids}
        probabilities = _from_logits(logits)
    if logits is None:
        logits = probabilities.log()
    if logits.shape[1] == 2:
        logits = logits[:, 1:] - logits[:, :1]
    if ids is None:
        # Not from the probabilities, which round a small logit to a tie.
        is_single = logits.shape[1] == 1
        ids = (logits > 0).long() if is_single else logits.argmax(1, keepdim=True)
    return {_LOGITS: logits, _PROBABILITIES: probabilities, _CLASS_IDS: ids}


def _given_probabilities(own: Mapping[str, Any], widths: set[int]) -> Tensor | None:
    for key in (_PROBABILITIES, _LOGISTIC):
        if key in own:
            found = _matrix(own, key, widths)
            return torch.cat([1 - found, found], 1) if found.shape[1] == 1 else found
    return None


def _from_logits(logits: Tensor) -> Tensor:
    if logits.shape[1] == 1:
        return torch.cat([(-logits).sigmoid(), logits.sigmoid()], dim=1)
    return logits.softmax(dim=1)


def label_predictions(own: Mapping[str, Any], n_classes: int) -> dict[str, Tensor]:
    """Return "probabilities" and "logits" of labels, each from the other if need be.

    Parameters
    ----------
    own : dict
        It may have either, of shape (n, n_classes).
    n_classes : int
        Number of labels.

    Raises
    ------
    ValueError
        If a shape is wrong.
    """
    found = {
        key: _matrix(own, key, {n_classes})
        for key in (_LOGITS, _PROBABILITIES)
        if key in own
    }
    if _LOGITS in found:
        found.setdefault(_PROBABILITIES, found[_LOGITS].sigmoid())
    elif _PROBABILITIES in found:
        found[_LOGITS] = found[_PROBABILITIES].logit()
    return found


def number_predictions(own: Mapping[str, Any], n_outputs: int) -> dict[str, Tensor]:
    """Return "predictions" of shape (n, n_outputs); a single one may come as (n,).

    Raises
    ------
    ValueError
        If the shape is wrong.
    """
    return {_NUMBERS: _matrix(own, _NUMBERS, {n_outputs})} if _NUMBERS in own else {}


def _matrix(own: Mapping[str, Any], key: str, widths: set[int]) -> Tensor:
    """Return a prediction as (n, width); one column may come as (n,)."""
    value = torch.as_tensor(own[key])
    matrix = value.unsqueeze(1) if value.ndim == 1 else value
    if matrix.ndim != 2 or matrix.shape[1] not in widths:
        shapes = " or ".join(f"(n_samples, {width})" for width in sorted(widths))
        raise ValueError(
            f"The prediction {key!r} of model_fn must have shape {shapes}, as y says; "
            f"got {tuple(value.shape)}."
        )
    return matrix
