# SPDX-License-Identifier: Apache-2.0
"""Checks of a user's own ``loss_fn`` and of what it returns."""

import inspect
from collections.abc import Callable

from torch import Tensor

__all__ = ["check_losses", "extra_arguments"]

_NEEDED = ("labels", "logits")
_EXTRAS = ("features", "loss_reduction")


def extra_arguments(
    loss_fn: Callable[..., Tensor] | None, owner: str
) -> tuple[str, ...]:
    """Return which of the optional arguments a loss_fn takes, after a check of all.

    Parameters
    ----------
    loss_fn : callable or None
        What the user gave.
    owner : str
        The head, for the message.

    Returns
    -------
    tuple of str
        Some of "features" and "loss_reduction".

    Raises
    ------
    TypeError
        If it is no function.
    ValueError
        If it lacks labels or logits, or needs anything else.
    """
    if loss_fn is None:
        return ()
    if not callable(loss_fn):
        raise TypeError(f"'loss_fn' of {owner} must be a function; got {loss_fn!r}.")
    parameters = inspect.signature(loss_fn).parameters
    required = {
        name
        for name, p in parameters.items()
        if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    }
    if not set(_NEEDED) <= set(parameters) or required - {*_NEEDED, *_EXTRAS}:
        raise ValueError(
            f"'loss_fn' of {owner} must have the arguments {' and '.join(_NEEDED)}, and "
            f"may have {' and '.join(_EXTRAS)}; got ({', '.join(parameters)}). Wrap it "
            "in a function that has them."
        )
    return tuple(name for name in _EXTRAS if name in parameters)


def check_losses(losses: Tensor, logits: Tensor, owner: str) -> None:
    """Raise ValueError unless there is one loss for every row of logits, or each logit."""
    one_per_row = (*logits.shape[:-1], 1)
    if losses.shape not in (one_per_row, logits.shape):
        raise ValueError(
            f"'loss_fn' of {owner} must return one loss per example, of shape "
            f"{one_per_row}, or one per logit; got {tuple(losses.shape)}. Keep the last "
            "dimension and leave the mean to the head."
        )
