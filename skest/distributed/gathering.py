# SPDX-License-Identifier: Apache-2.0
"""Puts what servers hold together, in the process that keeps checkpoints in memory."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from skest.checkpoints import Checkpoint
from skest.distributed.placement import n_rows_of, rows_of
from skest.distributed.variables import Part, Variable, Variables, merged_options

__all__ = ["Gathered", "gathered", "join"]


class Gathered(NamedTuple):
    """What all servers hold, of some kinds of variables.

    Parameters
    ----------
    optimizers : list
        `Part.optimizers` of each server.
    values : dict of str to Tensor
        Variables by name.
    slots : dict of str to Tensor
        ``"<optimizer>:<name>/<slot>"``.
    """

    optimizers: list[list[dict[str, Any]]]
    values: dict[str, Tensor]
    slots: dict[str, Tensor]


def gathered(variables: Variables, parts: Iterable[Part]) -> Gathered:
    """Put the parts of all servers together, one after the other.

    Parameters
    ----------
    variables : Variables
        Of the network.
    parts : iterable of Part
        Of all servers, in order. Of an iterator, no part is kept.
    """
    found, coming = Gathered([], {}, {}), iter(parts)
    for ps in range(variables.num_ps):
        _add(found, variables, ps, next(coming))  # a name would keep it beside the next
    return found


def join(
    found: Gathered, local: Checkpoint, other_names: Mapping[str, str]
) -> Checkpoint:
    """Return the checkpoint of a training whose state is in servers.

    Parameters
    ----------
    found : Gathered
        Of the dense variables and tables of all servers.
    local : Checkpoint
        Of the process that writes checkpoints: all else is from there, such as buffers,
        options, and the position in the input.
    other_names : dict of str to str
        What `aliases` returned for the network.
    """
    random = {k: t for k, t in local.optimizer.items() if k.startswith("random:")}
    values = {**local.variables, **found.values}
    values |= {other: values[name] for other, name in other_names.items()}
    return replace(
        local,
        variables=values,
        optimizer={**random, **found.slots},
        scalars=merged_options(local.scalars, found.optimizers),
    )


def _add(found: Gathered, variables: Variables, ps: int, part: Part) -> None:
    by_name = {v.name: v for v in variables.all}
    found.optimizers.append(part.optimizers)
    for key, tensor in part.tensors.items():
        owner, _, rest = key.partition(":")
        if owner == "variable":
            _put(found.values, rest, tensor, by_name[rest], ps, variables.num_ps)
        else:
            variable = by_name[rest.rpartition("/")[0]]
            _put(found.slots, key, tensor, variable, ps, variables.num_ps)


def _put(
    into: dict[str, Tensor],
    key: str,
    tensor: Tensor,
    variable: Variable,
    ps: int,
    num_ps: int,
) -> None:
    n_rows = n_rows_of(variable.shape[0], ps, num_ps) if variable.ps == -1 else -1
    is_cut = variable.ps == -1 and tensor.shape == (n_rows, *variable.shape[1:])
    if num_ps == 1 or not is_cut:
        into[key] = tensor
        return
    whole = into.get(key)
    if ps == 0 or whole is None:
        whole = into[key] = torch.empty(variable.shape, dtype=tensor.dtype)
    rows_of(whole, ps, num_ps).copy_(tensor)
