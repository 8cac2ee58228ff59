# SPDX-License-Identifier: Apache-2.0
"""Compares a recorded step with an eager one before it takes its place."""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from skest.execution.replay import Replay
from skest.spec import EstimatorSpec

__all__ = ["compared_only", "compared_step"]


@torch.no_grad()
def compared_step(
    replay: Replay,
    spec: EstimatorSpec,
    features: Any,
    labels: Any,
    tensors: Sequence[Tensor],
) -> tuple[Tensor, str | None]:
    """Take a step twice from the same state, replayed and eager; keep the eager result.

    Parameters
    ----------
    replay : Replay
        The recorded step.
    spec : EstimatorSpec
        Model of mode TRAIN.
    features, labels
        A batch other than the recorded one: what was taken for a constant, although it
        depends on the batch, gives other numbers then.
    tensors : sequence of Tensor
        All tensors in it.

    Returns
    -------
    loss : Tensor of shape ()
        What `skest.training.train_step` returns.
    difference : str or None
        None if loss, gradients, all that the recorded part of the step changes, and the
        states of the generators agree: bit for bit, or on a GPU and if the replay is not
        exact, to about three digits.
    """
    changes, difference = replay.changes, None
    ids = changes.ids(tensors)
    before = changes.copied(ids)
    try:
        loss = replay.compute(tensors)
        replayed = [loss, *changes.copied(ids), *_copied(replay.gradients())]
    except Exception as error:
        reason = f"{type(error).__name__}: {error}".partition("\n")[0].rstrip(".: ")
        difference = f"a recorded step cannot be replayed: {reason}"
    changes.restore(ids, before)
    with torch.enable_grad():
        loss = replay.halves.compute(spec, features, labels)
    covered = changes.cover(ids)
    if replay.has_update:
        replay.halves.update(spec)
    if difference is None:
        eager = [loss, *changes.copied(ids), *replay.gradients()]
        found = _difference(replayed, eager, len(replay.gradients()), replay.is_exact)
        if found is not None or not covered:
            where = found or "in other rows of a table"
            difference = (
                f"a recorded step gave other numbers with another batch, {where}"
            )
    if not replay.has_update:
        replay.halves.update(spec)
    return loss, difference


def compared_only(replay: Replay, *step: Any) -> str | None:
    """Compare as `compared_step` does, and leave everything as it was before.

    Parameters
    ----------
    replay : Replay
        The recorded step.
    *step
        The other parameters of `compared_step`.

    Returns
    -------
    str or None
        The difference.
    """
    changes, tensors = replay.changes, step[-1]
    ids = changes.ids(tensors)
    before = changes.copied(ids)
    _, difference = compared_step(replay, *step)
    changes.restore(ids, before)
    return difference


def _copied(tensors: Iterable[Tensor]) -> list[Tensor]:
    return [tensor.detach().clone() for tensor in tensors]


def _difference(
    replayed: Sequence[Tensor], eager: Sequence[Tensor], n_gradients: int, exactly: bool
) -> str | None:
    """Tell where the loss, what a step changes, or gradients differ, and by how much."""
    if len(replayed) != len(eager):
        return "of other tensors"
    for i, (first, second) in enumerate(zip(replayed, eager, strict=True)):
        # A GPU adds up rows in any order, so that eager steps differ by as much.
        equal = _are_same if exactly and first.device.type == "cpu" else _are_close
        if not all(map(equal, _dense(first), _dense(second))):
            is_gradient = i >= len(eager) - n_gradients
            what = (
                "a gradient" if is_gradient else "what it changes" if i else "the loss"
            )
            return (
                f"in {what} of shape {tuple(second.shape)}{_by_how_much(first, second)}"
            )
    return None


def _by_how_much(first: Tensor, second: Tensor) -> str:
    if first.shape != second.shape:
        return f", by the shape {tuple(first.shape)}"
    if second.is_sparse:
        return ""
    # A type in which all others can be subtracted.
    most = (first.to(torch.complex128) - second.to(torch.complex128)).abs().max()
    return f", by up to {most.item():.3g}"


def _are_same(first: Tensor, second: Tensor) -> bool:
    """Compare bit for bit: 0.0 and -0.0 are equal, and not the same."""
    is_float = first.is_floating_point() and second.is_floating_point()
    return torch.equal(first, second) and (
        not is_float or torch.equal(first.signbit(), second.signbit())
    )


def _are_close(first: Tensor, second: Tensor) -> bool:
    return torch.allclose(first, second, rtol=1e-3, atol=1e-5)


def _dense(tensor: Tensor) -> tuple[Tensor, ...]:
    """Return a tensor, or if it is sparse its ids and its values."""
    return (tensor._indices(), tensor._values()) if tensor.is_sparse else (tensor,)
