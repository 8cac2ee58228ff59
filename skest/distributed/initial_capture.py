# SPDX-License-Identifier: Apache-2.0
"""What a chief keeps of the variables that it gives to the parameter servers."""

from dataclasses import replace
from typing import Any

from torch import Tensor

from skest.checkpoints import Checkpoint
from skest.distributed.hidden_variables import elsewhere_of, hidden
from skest.distributed.variables import Variables, merged_options, unique_state
from skest.hooks.base import Run
from skest.optimizer_state import named_state

__all__ = ["initial_capture"]


def initial_capture(run: Run, variables: Variables) -> Checkpoint:
    """Return a checkpoint that has the very tensors of what will be in servers.

    Nobody writes to those any more: when a replica has given them to the servers, its
    network gets others. All else is copied.

    Parameters
    ----------
    run : Run
        Before its first step.
    variables : Variables
        Of its network.
    """
    network, optimizers = run.network, run.spec.optimizers
    slots: dict[str, Tensor] = {}
    options: list[Any] = []
    states: list[dict[Any, Any]] = []
    for i, optimizer in enumerate(optimizers):
        of_optimizer, described = named_state(optimizer, network.named_parameters())
        slots |= {f"{i}:{name}": slot for name, slot in of_optimizer.items()}
        options.append(described)
        states.append(dict(optimizer.state))
        optimizer.state.clear()
    elsewhere, others = elsewhere_of(variables, network)
    try:
        with hidden(network, elsewhere | others.keys()):
            captured = run.capture_checkpoint()
    finally:
        for optimizer, state in zip(optimizers, states, strict=True):
            optimizer.state.update(state)
    tensors = unique_state(network)
    values = {name: tensors[name].detach() for name in elsewhere}
    under_other_names = {other: values[name] for other, name in others.items()}
    return replace(
        captured,
        variables={**captured.variables, **values, **under_other_names},
        optimizer={**captured.optimizer, **slots},
        scalars=merged_options(captured.scalars, [options]),
    )
