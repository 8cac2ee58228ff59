# SPDX-License-Identifier: Apache-2.0
"""Compares a recorded step with an eager one before it takes its place."""

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from skest.execution.memory import dense_parts
from skest.execution.replay import Replay
from skest.spec import EstimatorSpec

__all__ = ["compared_only", "compared_step"]

_DIGITS, _LEAST = 1e-3, 1e-5


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
        exact, integers so and other numbers to about three digits.
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
        found = _difference(replayed, eager, before)
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
    replayed: Sequence[Tensor],
    eager: Sequence[Tensor],
    before: Sequence[Tensor],
) -> str | None:
    """Tell where the loss, what a step changes, or gradients differ, and by how much.

    `before` is what the step changes as it was before the step.
    """
    if len(replayed) != len(eager):
        return "of other tensors"
    for i, (first, second) in enumerate(zip(replayed, eager, strict=True)):
        is_changed = 0 < i <= len(before)
        if not _agree(first, second, before[i - 1] if is_changed else None):
            what = (
                "what it changes" if is_changed else "a gradient" if i else "the loss"
            )
            return (
                f"in {what} of shape {tuple(second.shape)}{_by_how_much(first, second)}"
            )
    return None


def _agree(first: Tensor, second: Tensor, before: Tensor | None) -> bool:
    if first.is_sparse != second.is_sparse:
        return False
    # A GPU adds up rows in any order, so that eager steps differ by as much.
    on_cpu = first.device.type == "cpu"
    equal = _are_same if on_cpu else partial(_are_close, before=before)
    return all(map(equal, dense_parts(first), dense_parts(second)))


def _by_how_much(first: Tensor, second: Tensor) -> str:
    if first.shape != second.shape:
        return f", by the shape {tuple(first.shape)}"
    if first.is_sparse or second.is_sparse:
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


def _are_close(first: Tensor, second: Tensor, before: Tensor | None) -> bool:
    """Compare numbers, or how far they are from what was before, to about three digits.

    Of a weight of 1 that a step changes by 0.0001, or a counter at 10,000, three digits
    are no evidence of the step. Integers, such as ids, have nothing to round.
    """
    if (first.shape, first.dtype) != (second.shape, second.dtype):
        return False
    is_whole = not (first.is_floating_point() or first.is_complex())
    if is_whole or not first.numel():
        return torch.equal(first, second)
    if before is None:
        return torch.allclose(first, second, rtol=_DIGITS, atol=_LEAST)
    rounding = 4 * torch.finfo(second.dtype).eps * second.abs()
    most = _LEAST + _DIGITS * (second - before).abs().max() + rounding
    return bool(((first == second) | ((first - second).abs() <= most)).all())
