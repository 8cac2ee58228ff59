# SPDX-License-Identifier: Apache-2.0
"""Makes an optimizer again where the code of the model is not there."""

import inspect
import sys
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer

from skest.distributed.lazy_building import LazyBuilding
from skest.ftrl import Ftrl
from skest.optimizer_state import load_named_state
from skest.proximal_adagrad import ProximalAdagrad
from skest.row_sparse import RowSparse

__all__ = ["rebuilt_optimizer"]


def rebuilt_optimizer(
    description: Mapping[str, Any],
    parameters: Mapping[str, nn.Parameter],
    slots: Mapping[str, Tensor],
) -> Optimizer | None:
    """Make the optimizer that a worker described.

    Parameters
    ----------
    description : dict
        What `skest.optimizer_state.named_state` returned, with the ``module`` of the
        class, the ``implementation`` of each group, and whether it is ``row_sparse``.
    parameters : dict of str to Parameter
        Those in this process; the groups name no others.
    slots : dict of str to Tensor
        As `named_state` returned them. They become those of the optimizer, without a
        copy.

    Returns
    -------
    Optimizer or None
        None if it has no parameters here.

    Raises
    ------
    ValueError
        If the class is not known in this process, or can't be made or used as torch.optim
        does it. Nothing is imported because of a description.
    """
    groups = [
        {
            **group["options"],
            **group["implementation"],
            "params": [parameters[name] for name in group["params"]],
        }
        for group in description["param_groups"]
    ]
    if not any(group["params"] for group in groups):
        return None
    cls = _class(description["module"], description["class"])
    try:
        with LazyBuilding() as building:  # of slots that are replaced below
            made = _made(cls, groups)
        building.built([made])
    except Exception as error:
        raise ValueError(
            f"The optimizer {cls.__name__} can't be made again on a parameter server: "
            f"{error} Its constructor must take the options in its parameter groups."
        ) from error
    if description["row_sparse"]:
        made = RowSparse(made)
        made.counts_all_steps = True
    load_named_state(made, parameters, slots, description, share=True)
    return made


def _class(module: str, name: str) -> type[Optimizer]:
    """Find a class of optimizers among those that are loaded already."""
    for own in (Ftrl, ProximalAdagrad):
        if name == own.__name__:
            return own
    source = (
        torch.optim if module.startswith("torch.optim.") else sys.modules.get(module)
    )
    found = getattr(source, name, None)
    if not (isinstance(found, type) and issubclass(found, Optimizer)):
        raise ValueError(
            f"The optimizer {module}.{name} is not known on a parameter server, which "
            "knows those of torch.optim and skest, and what its own program has "
            "imported. Use one of those, or import the module where the parameter "
            "server is started."
        )
    closure = inspect.signature(found.step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        raise ValueError(
            f"The optimizer {name} computes the loss several times in a step, which no "
            "parameter server can do. Use another, such as Adagrad."
        )
    return found


def _made(cls: type[Optimizer], groups: list[dict[str, Any]]) -> Optimizer:
    taken = list(inspect.signature(cls).parameters)[1:]
    first = {key: _tuple(value) for key, value in groups[0].items() if key in taken}
    groups = [{key: _tuple(value) for key, value in g.items()} for g in groups]
    for group in groups:
        group["params"] = list(group["params"])
    return cls(groups, **first)


def _tuple(value: Any) -> Any:
    """Return what was a tuple before JSON made a list of it."""
    return tuple(value) if isinstance(value, list) else value
