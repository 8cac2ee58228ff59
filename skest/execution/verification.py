# SPDX-License-Identifier: Apache-2.0
"""Compares a recorded step with an eager one before it takes its place."""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from skest.execution.replay import Replay
from skest.spec import EstimatorSpec
from skest.training import apply_gradients, compute_gradients, trained_parameters

__all__ = ["compared_step"]


@torch.no_grad()
def compared_step(
    replay: Replay,
    spec: EstimatorSpec,
    features: Any,
    labels: Any,
    tensors: Sequence[Tensor],
) -> tuple[Tensor, bool]:
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
    is_equal : bool
        Whether loss, gradients, all that the recorded part of the step changes, and the
        states of the generators agree bit for bit.
    """
    before = _copied(replay.changed)
    states = [generator.get_state() for generator in replay.generators]
    replayed = _copied([replay.compute(tensors), *replay.changed, *replay.gradients()])
    replayed += [generator.get_state() for generator in replay.generators]

    for tensor, value in zip(replay.changed, before, strict=True):
        tensor.copy_(value)
    for generator, state in zip(replay.generators, states, strict=True):
        generator.set_state(state)
    del before
    with torch.enable_grad():
        loss = compute_gradients(spec, features, labels)
    if replay.has_update:
        apply_gradients(spec)
    eager = [loss, *replay.changed, *replay.gradients()]
    eager += [generator.get_state() for generator in replay.generators]
    is_equal = all(map(_are_equal, replayed, eager)) and len(replayed) == len(eager)
    if not replay.has_update:
        apply_gradients(spec)
    return loss, is_equal


def _copied(tensors: Iterable[Tensor]) -> list[Tensor]:
    return [tensor.detach().clone() for tensor in tensors]


def _are_equal(first: Tensor, second: Tensor) -> bool:
    if first.is_sparse:
        return (
            second.is_sparse
            and torch.equal(first._indices(), second._indices())
            and torch.equal(first._values(), second._values())
        )
    return torch.equal(first, second)
