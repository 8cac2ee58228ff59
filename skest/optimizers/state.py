# SPDX-License-Identifier: Apache-2.0
"""The state of an optimizer by names of parameters, for checkpoints."""

from collections.abc import Collection, Iterable, Mapping
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.torch_version import TorchVersion

from skest.core.resources import without_dynamo
from skest.exceptions import CheckpointMismatchError
from skest.optimizers.row_sparse import rule_of

# How a rule is computed, not what it computes: left to the machine that continues.
IMPLEMENTATION_OPTIONS = frozenset({"capturable", "differentiable", "foreach", "fused"})

NamedParameters: TypeAlias = Iterable[tuple[str, Tensor]] | Mapping[str, Tensor]


def named_state(
    optimizer: Optimizer, named_parameters: NamedParameters
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """State of an optimizer by parameter name, to be saved without pickle.

    Parameters
    ----------
    optimizer : torch.optim.Optimizer
        Whose state is wanted. With several optimizers call this for each, and put
        them apart by a prefix of the keys.
    named_parameters : iterable of (str, Tensor) or mapping
        ``network.named_parameters()``; may hold more than the optimizer's.

    Returns
    -------
    tensors : dict of str to Tensor
        Slots, ``"<parameter>/<slot>"``. They are the optimizer's own, as in
        ``state_dict``: clone what shall outlive the next step.
    scalars : dict
        All else, ready for JSON: the class, the names and options of the parameter
        groups, the names of the slots that are tensors, the values of the others.

    Raises
    ------
    ValueError
        If the optimizer holds a parameter that `named_parameters` does not name.
    TypeError
        If an option or a slot is neither a tensor nor of a type that JSON knows.

    Examples
    --------
    >>> import torch
    >>> from skest.optimizers.state import named_state
    >>> from skest.optimizers import make_optimizer
    >>> network = torch.nn.Linear(2, 1)
    >>> optimizer = make_optimizer("adagrad", network.parameters())
    >>> tensors, scalars = named_state(optimizer, network.named_parameters())
    >>> sorted(tensors)
    ['bias/step', 'bias/sum', 'weight/step', 'weight/sum']
    >>> scalars["param_groups"][0]["options"]["lr"]
    0.001
    """
    groups = _named_groups(optimizer, named_parameters)
    tensors: dict[str, Tensor] = {}
    slots: dict[str, list[str]] = {}
    values: dict[str, dict[str, Any]] = {}
    for name, param in (member for group in groups for member in group.items()):
        for slot, value in optimizer.state.get(param, {}).items():
            if isinstance(value, Tensor):
                tensors[f"{name}/{slot}"] = value.detach()
                slots.setdefault(name, []).append(slot)
            else:
                value = to_json(value, f"The optimizer's slot {slot!r} of {name!r}")
                values.setdefault(name, {})[slot] = value
    return tensors, {
        "class": _class_name(optimizer),
        "param_groups": [
            {"params": list(group), "options": group_options(raw)}
            for group, raw in zip(groups, optimizer.param_groups, strict=True)
        ],
        "slots": slots,
        "values": values,
    }


def load_named_state(
    optimizer: Optimizer,
    named_parameters: NamedParameters,
    tensors: Mapping[str, Tensor],
    scalars: Mapping[str, Any],
    *,
    share: bool = False,
) -> None:
    """Put a state that `named_state` returned into a freshly made optimizer.

    Training continues bit for bit. Options such as the learning rate become those of
    the saved state; which implementation computes the rule (fused, foreach) does not.

    Parameters
    ----------
    optimizer : torch.optim.Optimizer
        Of the class that was saved, with or without `skest.optimizers.RowSparse`.
    named_parameters : iterable of (str, Tensor) or mapping
        As in `named_state`.
    tensors : mapping of str to Tensor
        Slots, on the CPU. They are copied, unless `share`; dtype and device become
        those of the parameters. Where one is on the meta device, the optimizer keeps what
        it has.
    scalars : mapping
        As `named_state` returned it, or as JSON brought it back.
    share : bool, default=False
        Whether slots become those of the optimizer as they are, without a copy if dtype
        and device are those of the parameters.

    Raises
    ------
    CheckpointMismatchError
        If class, names or shapes differ; lists all differences and changes nothing.
    ValueError
        If the optimizer holds a parameter that `named_parameters` does not name.

    Examples
    --------
    >>> import torch
    >>> from skest.optimizers.state import load_named_state, named_state
    >>> from skest.optimizers import make_optimizer
    >>> network = torch.nn.Linear(2, 1)
    >>> optimizer = make_optimizer("adam", network.parameters(), 0.5)
    >>> state = named_state(optimizer, network.named_parameters())
    >>> fresh = make_optimizer("adam", network.parameters())
    >>> load_named_state(fresh, network.named_parameters(), *state)
    >>> fresh.param_groups[0]["lr"]
    0.5
    """
    groups = _named_groups(optimizer, named_parameters)
    problems = _differences(optimizer, groups, tensors, scalars)
    if problems:
        raise CheckpointMismatchError(
            "The saved optimizer state does not fit:\n  "
            + "\n  ".join(problems)
            + "\nUse the network and optimizer that it was saved from, or train anew."
        )
    state = {}
    members = [member for group in groups for member in group.items()]
    for position, (name, param) in enumerate(members):
        slots = {
            slot: tensors[f"{name}/{slot}"].detach()
            for slot in scalars["slots"].get(name, ())
        }
        # Without values: a parameter server holds them, and this process their shapes.
        elsewhere = {slot for slot, value in slots.items() if value.is_meta}
        slots = {
            slot: value if share else value.clone()
            for slot, value in slots.items()
            if slot not in elsewhere
        }
        kept = optimizer.state.get(param, {})
        slots |= {
            slot: kept[slot]
            for slot in elsewhere & kept.keys()
            if not kept[slot].is_meta  # as beside parameter servers, which have it
        }
        slots.update(scalars["values"].get(name, {}))
        if slots:
            state[position] = slots
    # Both past a guard that imports torch's compiler.
    # Groups of numbers in place of parameters, in the order of `members`.
    packed = without_dynamo(type(optimizer).state_dict)(optimizer)["param_groups"]
    for group, saved in zip(packed, scalars["param_groups"], strict=True):
        set_group_options(group, saved["options"])
    # torch's own way, which brings slots to the types and devices of the parameters.
    load = without_dynamo(type(optimizer).load_state_dict)
    load(optimizer, {"state": state, "param_groups": packed})


def check_members(optimizer: Optimizer, network: nn.Module) -> None:
    """Raise ValueError if an optimizer holds what is no parameter of a network."""
    own = set(network.parameters())
    for param in (p for group in optimizer.param_groups for p in group["params"]):
        if param not in own:
            raise ValueError(
                f"The optimizer {_class_name(optimizer)} holds a parameter of shape "
                f"{tuple(param.shape)} that is not in the 'network' of the EstimatorSpec, "
                "so it would train something else. Make it of network.parameters(), or "
                "add to the network the module that has this parameter."
            )


def follow_parameters(optimizer: Optimizer) -> None:
    """Move slots that exist from construction on to where their variables are now.

    A slot of the shape of its variable gets its device and floating type. An update that
    is fused or capturable counts its steps on the device of the variable; where a device
    has no fused update of the rule, torch chooses another implementation.
    """
    for group in optimizer.param_groups:
        if group.get("fused") and not all(
            _has_fused(optimizer, parameter) for parameter in group["params"]
        ):
            group["fused"] = None
        for parameter in group["params"]:
            slots = optimizer.state.get(parameter, {})
            for name, slot in slots.items():
                if not isinstance(slot, Tensor):
                    continue
                if name == "step" and not slot.ndim:
                    if group.get("fused") or group.get("capturable"):
                        slots[name] = slot.to(parameter.device)
                elif slot.shape == parameter.shape:
                    slots[name] = slot.to(parameter)


def _has_fused(optimizer: Optimizer, parameter: Tensor) -> bool:
    """Tell whether the rule of an optimizer has a fused update on a device."""
    rule = rule_of(optimizer)
    device = parameter.device.type
    if device == "cpu" or not isinstance(rule, torch.optim.Adagrad):
        return True
    # As a GPU showed: fused Adagrad does not work on CUDA before torch 2.12.
    return device == "cuda" and TorchVersion(torch.__version__) >= "2.12"


def _named_groups(
    optimizer: Optimizer, named_parameters: NamedParameters
) -> list[dict[str, Tensor]]:
    """Parameter groups of an optimizer, each as {name: parameter}."""
    # Tensors are hashed by identity.
    names = {param: name for name, param in dict(named_parameters).items()}
    for param in (p for group in optimizer.param_groups for p in group["params"]):
        if param not in names:
            raise ValueError(
                f"{_class_name(optimizer)} holds a parameter of shape "
                f"{tuple(param.shape)} that 'named_parameters' does not name; pass "
                "network.named_parameters() of the network it was made for."
            )
    return [{names[p]: p for p in group["params"]} for group in optimizer.param_groups]


def _class_name(optimizer: Optimizer) -> str:
    # That of the rule: whether it goes by row is no part of a state.
    rule = rule_of(optimizer)
    return type(rule).__name__


def group_options(group: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a parameter group that belong to its state, for JSON.

    Raises
    ------
    TypeError
        If JSON has nothing like the type of one.

    Examples
    --------
    >>> from skest.optimizers.state import group_options
    >>> group_options({"params": [], "lr": 0.1, "betas": (0.9, 0.99), "fused": True})
    {'lr': 0.1, 'betas': [0.9, 0.99]}
    """
    left_out = IMPLEMENTATION_OPTIONS | {"params", "param_names"}
    return {
        key: to_json(value, f"The optimizer's option {key!r}")
        for key, value in group.items()
        if key not in left_out
    }


def set_group_options(group: dict[str, Any], options: Mapping[str, Any]) -> None:
    """Set options that `group_options` returned, in the types that the group has."""
    for key, value in options.items():
        group[key] = from_json(value, group.get(key))


def to_json(value: Any, what: str) -> Any:
    """Return a part of the state of an optimizer or scheduler in types that JSON has.

    Dictionaries whose keys are no strings become pairs.

    Raises
    ------
    TypeError
        If it is of another type; `what` says what it is.
    """
    if isinstance(value, np.generic) or (isinstance(value, Tensor) and not value.ndim):
        return value.item()
    if isinstance(value, list | tuple):
        return [to_json(item, what) for item in value]
    if isinstance(value, Mapping):
        items = {key: to_json(item, what) for key, item in value.items()}
        are_strings = all(isinstance(key, str) for key in items)
        return items if are_strings else [[key, item] for key, item in items.items()]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(
        f"{what} is of type {type(value).__name__}, which no checkpoint can hold; it must "
        "be a number, a string or a list of those, or for a slot a tensor."
    )


def from_json(value: Any, current: Any) -> Any:
    """Return what `to_json` wrote, in the types that are there now."""
    kind: Any = type(current)
    if isinstance(current, Tensor):
        return torch.full_like(current, value)
    # Keys that are no strings came back as pairs.
    if isinstance(current, Mapping):
        items = dict(value).items()
        return kind({key: from_json(item, current.get(key)) for key, item in items})
    if isinstance(current, list | tuple) and len(current) == len(value):
        pairs = zip(value, current, strict=True)
        return kind(from_json(item, of) for item, of in pairs)
    return value


def _differences(
    optimizer: Optimizer,
    groups: list[dict[str, Tensor]],
    tensors: Mapping[str, Tensor],
    scalars: Mapping[str, Any],
) -> list[str]:
    """All that keeps a saved state from being loaded, one line for each."""
    ours, theirs = _class_name(optimizer), scalars["class"]
    # Slots of another rule may have the same names and mean something else.
    if ours != theirs:
        return [f"optimizer: expected {ours}, the saved state is of {theirs}"]
    here, there = len(groups), len(scalars["param_groups"])
    if here != there:
        return [f"parameter groups: expected {here}, the saved state has {there}"]
    free: Collection[str] = getattr(optimizer, "free_slots", ())
    problems = []
    for index, (group, saved) in enumerate(
        zip(groups, scalars["param_groups"], strict=True)
    ):
        place = f" in parameter group {index}" if here > 1 else ""
        names = saved["params"]
        problems += [f"missing{place}: {n!r}" for n in group if n not in names]
        problems += [f"unexpected{place}: {n!r}" for n in names if n not in group]
        for name in [n for n in group if n in names]:
            kept = optimizer.state.get(group[name], {})
            # Of rules that make their slots before the first step, as Adagrad and Ftrl.
            shapes = {s: v.shape for s, v in kept.items() if isinstance(v, Tensor)}
            for slot in {**shapes, **dict.fromkeys(scalars["slots"].get(name, ()))}:
                key = f"{name}/{slot}"
                if key not in tensors:
                    problems.append(f"missing: {key!r}")
                elif slot not in free:  # whose sizes follow from the data
                    found = tensors[key].shape
                    problems += _wrong_shape(key, found, shapes.get(slot), group[name])
    listed = {f"{name}/{s}" for name, of in scalars["slots"].items() for s in of}
    return problems + [f"unexpected: {key!r}" for key in tensors if key not in listed]


def _wrong_shape(
    key: str, found: torch.Size, expected: torch.Size | None, param: Tensor
) -> list[str]:
    """Tell if a slot has another shape, which may not be known before the first step."""
    if found == expected or (expected is None and _spans(found, param)):
        return []
    wanted = tuple(param.shape if expected is None else expected)
    return [f"shape of {key!r}: expected {wanted}, got {tuple(found)}"]


def _spans(shape: torch.Size, param: Tensor) -> bool:
    """Whether a slot of this shape is a scalar, or one value per element or slice."""
    # Adafactor keeps one value for each row and column, in slots of size 1 elsewhere.
    if len(shape) in (0, param.ndim):
        return all(a in (1, b) for a, b in zip(shape, param.shape, strict=False))
    return False
