# SPDX-License-Identifier: Apache-2.0
"""Builds optimizers from what estimators take; names their state for checkpoints."""

import inspect
import math
import numbers
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer, ParamsT

from skest.exceptions import CheckpointMismatchError
from skest.ftrl import Ftrl
from skest.row_sparse import RowSparse

__all__ = [
    "OPTIMIZERS",
    "NamedOptimizer",
    "OptimizerLike",
    "load_named_state",
    "make_optimizer",
    "named_state",
]

OptimizerLike: TypeAlias = str | type[Optimizer] | Callable[[Any], Optimizer]


class NamedOptimizer(NamedTuple):
    """What an optimizer's name stands for: a class, its rate and its options."""

    cls: type[Optimizer]
    learning_rate: float
    options: Mapping[str, Any]


_ADAM = {"betas": (0.9, 0.999), "eps": 1e-7}

OPTIMIZERS: Mapping[str, NamedOptimizer] = MappingProxyType(
    {
        "adagrad": NamedOptimizer(
            torch.optim.Adagrad, 0.001, {"initial_accumulator_value": 0.1, "eps": 1e-7}
        ),
        "adam": NamedOptimizer(torch.optim.Adam, 0.001, _ADAM),
        "adamw": NamedOptimizer(torch.optim.AdamW, 0.001, _ADAM),
        "ftrl": NamedOptimizer(Ftrl, 0.001, {}),
        "momentum": NamedOptimizer(torch.optim.SGD, 0.01, {"momentum": 0.9}),
        "rmsprop": NamedOptimizer(
            torch.optim.RMSprop, 0.001, {"alpha": 0.9, "eps": 1e-7}
        ),
        "sgd": NamedOptimizer(torch.optim.SGD, 0.01, {}),
    }
)

# How a rule is computed, not what it computes: left to the machine that continues.
_IMPLEMENTATION = frozenset({"capturable", "differentiable", "foreach", "fused"})


def make_optimizer(
    optimizer: OptimizerLike,
    params: ParamsT,
    learning_rate: float | None = None,
    *,
    weight_decay: float = 0.0,
    **options: Any,
) -> Optimizer:
    """Build a fresh optimizer for the parameters of a network.

    Parameters
    ----------
    optimizer : str, torch.optim.Optimizer subclass or callable
        A name in any case (see the table below), a class, or a callable that takes
        `params` and returns an optimizer.
    params : iterable
        Parameters, (name, parameter) pairs or parameter groups, as in torch.optim.
    learning_rate : float, default=None
        Learning rate, > 0. None is the default of the name or of the class. A callable
        sets its own, and this one is not used.
    weight_decay : float, default=0.0
        Strength of weight decay, >= 0. It always replaces the default of a class, so
        that AdamW does not decay unless told so.
    **options
        Further arguments of the class, in the spelling of torch.optim or of
        `skest.ftrl.Ftrl`.

    Returns
    -------
    optimizer : torch.optim.Optimizer
        Wrapped in `skest.row_sparse.RowSparse` if any parameter has the attribute
        ``is_row_table = True``.

    Raises
    ------
    TypeError
        If `optimizer` is an instance or nothing that makes one, if a callable returns
        something else, or for an option that the optimizer does not take.
    ValueError
        For an unknown name, a rate or decay out of range, weight decay where the
        optimizer has none, or no parameters.

    Notes
    -----
    Names and defaults are those of ``tf.keras.optimizers.legacy``; "adamw" and
    "momentum" are added, the latter with the customary 0.9.

    ======== =================== ===== =============================================
    name     class               rate  options
    ======== =================== ===== =============================================
    adagrad  torch.optim.Adagrad 0.001 initial_accumulator_value=0.1, eps=1e-7
    adam     torch.optim.Adam    0.001 betas=(0.9, 0.999), eps=1e-7
    adamw    torch.optim.AdamW   0.001 betas=(0.9, 0.999), eps=1e-7
    ftrl     skest.ftrl.Ftrl     0.001 initial_accumulator_value=0.1, lr_power=-0.5
    momentum torch.optim.SGD     0.01  momentum=0.9
    rmsprop  torch.optim.RMSprop 0.001 alpha=0.9, eps=1e-7
    sgd      torch.optim.SGD     0.01
    ======== =================== ===== =============================================

    Two epsilons are placed differently. Adam adds it to the bias-corrected root of the
    second moment, Keras to the uncorrected one; RMSprop with momentum adds it to the
    root, Keras under it.

    On a CPU the fused or foreach implementation is chosen unless `options` say
    otherwise.

    Examples
    --------
    >>> import torch
    >>> from skest.optimizers import make_optimizer
    >>> network = torch.nn.Linear(2, 1)
    >>> optimizer = make_optimizer("Adagrad", network.parameters(), 0.05)
    >>> type(optimizer).__name__, optimizer.param_groups[0]["lr"]
    ('Adagrad', 0.05)
    >>> make_optimizer(
    ...     lambda params: torch.optim.SGD(params, lr=0.1, nesterov=True, momentum=0.5),
    ...     network.parameters(),
    ... ).param_groups[0]["momentum"]
    0.5
    """
    if isinstance(optimizer, Optimizer):
        raise TypeError(
            f"'optimizer' is an instance of {type(optimizer).__name__}. Every call "
            "builds a fresh network, but an instance is bound to the tensors of one "
            "network. Pass its name, its class, or a callable: "
            "optimizer=lambda params: torch.optim.Adam(params, lr=0.001)."
        )
    if learning_rate is not None:
        learning_rate = _finite("learning_rate", learning_rate, positive=True)
    weight_decay = _finite("weight_decay", weight_decay)
    items, leaves = _listed(params)
    if isinstance(optimizer, str) or _is_class(optimizer):
        made = _from_class(
            optimizer, items, leaves, learning_rate, weight_decay, options
        )
    elif callable(optimizer) and not isinstance(optimizer, type):
        made = _from_callable(optimizer, items, weight_decay, options)
    else:
        raise TypeError(
            "'optimizer' must be a name, a torch.optim.Optimizer class or a "
            f"callable(params) that returns an optimizer, got {optimizer!r}."
        )
    if _has_row_tables(leaves) and not isinstance(made, RowSparse):
        return RowSparse(made)
    return made


def _finite(name: str, value: Any, positive: bool = False) -> float:
    """`value` as a float, if it is a finite number > 0 or >= 0."""
    if not isinstance(value, numbers.Real) or isinstance(value, bool):
        raise TypeError(f"{name!r} must be a number, got {value!r}.")
    number = float(value)
    if not math.isfinite(number) or number < 0 or (positive and number == 0):
        bound = "> 0" if positive else ">= 0"
        raise ValueError(f"{name!r} must be finite and {bound}, got {value!r}.")
    return number


def _listed(params: ParamsT) -> tuple[list[Any], list[Tensor]]:
    """`params` as a list that can be read twice, and the parameters in it."""
    if isinstance(params, Tensor):
        raise TypeError("'params' must be an iterable of parameters, got one tensor.")
    items: list[Any] = [
        {**item, "params": _one_or_many(item["params"])}
        if isinstance(item, dict)
        else item
        for item in params
    ]
    members = [p for i in items for p in (i["params"] if isinstance(i, dict) else [i])]
    if not members:
        raise ValueError(
            "An optimizer needs at least one parameter, got none: the network has "
            "nothing to train. Check its columns and layers."
        )
    return items, [m[1] if isinstance(m, tuple) else m for m in members]


def _one_or_many(params: Any) -> list[Any]:
    return [params] if isinstance(params, Tensor) else list(params)


def _is_class(optimizer: Any) -> bool:
    return isinstance(optimizer, type) and issubclass(optimizer, Optimizer)


def _has_row_tables(leaves: list[Tensor]) -> bool:
    return any(getattr(leaf, "is_row_table", False) for leaf in leaves)


def _from_class(
    optimizer: Any,
    items: list[Any],
    leaves: list[Tensor],
    learning_rate: float | None,
    weight_decay: float,
    options: dict[str, Any],
) -> Optimizer:
    """Make an optimizer by name or of a class, with checked options."""
    cls, label = optimizer, getattr(optimizer, "__name__", optimizer)
    if isinstance(optimizer, str):
        named = OPTIMIZERS.get(optimizer.lower())
        if named is None:
            raise ValueError(
                f"Unknown 'optimizer' {optimizer!r}. Names are {sorted(OPTIMIZERS)}; a "
                "torch.optim.Optimizer class or a callable(params) will do as well."
            )
        cls = named.cls
        if learning_rate is None:
            learning_rate = named.learning_rate
        options = {**named.options, **_implementation(cls, leaves, options), **options}
    taken = inspect.signature(cls).parameters
    takes_any = any(p.kind is p.VAR_KEYWORD for p in taken.values())
    unknown = sorted(set(options) - set(taken))
    if unknown and not takes_any:
        raise TypeError(
            f"Optimizer {label!r} takes no option {unknown[0]!r}; its options are "
            f"{sorted(set(taken) - {'params', 'lr', 'weight_decay'})}."
        )
    if "weight_decay" in taken:
        options = {**options, "weight_decay": weight_decay}
    elif weight_decay:
        instead = "; use 'l2' for a penalty on the weights" if "l2" in taken else ""
        raise ValueError(
            f"Optimizer {label!r} has no weight decay, got weight_decay="
            f"{weight_decay!r}{instead}."
        )
    if learning_rate is not None:
        options = {**options, "lr": learning_rate}
    return cls(items, **options)


def _implementation(
    cls: type[Optimizer], leaves: list[Tensor], options: dict[str, Any]
) -> dict[str, bool]:
    """Choose the fastest exact implementation on a CPU; elsewhere leave it to torch."""
    if cls is Ftrl or options.keys() & _IMPLEMENTATION:
        return {}
    if any(leaf.device.type != "cpu" for leaf in leaves):
        return {}
    if cls is torch.optim.Adagrad:
        return {"fused": True}
    # Fused Adam rounds the last elements of a tensor differently, so that an update of
    # a row would depend on the rows beside it, and on how tables are split.
    if issubclass(cls, torch.optim.Adam) and not _has_row_tables(leaves):
        return {"fused": True}
    # Fused SGD stops at a parameter whose first gradient comes late.
    return {"foreach": True}


def _from_callable(
    factory: Callable[[Any], Any],
    items: list[Any],
    weight_decay: float,
    options: dict[str, Any],
) -> Optimizer:
    """Call a user's callable, which has all settings in itself."""
    if weight_decay:
        raise ValueError(
            f"weight_decay={weight_decay!r} cannot be passed on to a callable "
            "'optimizer'; set it inside the callable."
        )
    if options:
        raise TypeError(
            f"Options {sorted(options)} cannot be passed on to a callable 'optimizer'; "
            "set them inside the callable, e.g. with functools.partial."
        )
    made = factory(items)
    if not isinstance(made, Optimizer):
        raise TypeError(
            "A callable 'optimizer' must return a torch.optim.Optimizer, got "
            f"{made!r} from {factory!r}."
        )
    return made


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
    >>> from skest.optimizers import make_optimizer, named_state
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
    for name, param in _members(groups):
        for slot, value in optimizer.state.get(param, {}).items():
            if isinstance(value, Tensor):
                tensors[f"{name}/{slot}"] = value.detach()
                slots.setdefault(name, []).append(slot)
            else:
                value = _to_json(value, f"slot {slot!r} of {name!r}")
                values.setdefault(name, {})[slot] = value
    return tensors, {
        "class": _class_name(optimizer),
        "param_groups": [
            {"params": list(group), "options": _options(raw)}
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
) -> None:
    """Put a state that `named_state` returned into a freshly made optimizer.

    Training continues bit for bit. Options such as the learning rate become those of
    the saved state; which implementation computes the rule (fused, foreach) does not.

    Parameters
    ----------
    optimizer : torch.optim.Optimizer
        Of the class that was saved, with or without `skest.row_sparse.RowSparse`.
    named_parameters : iterable of (str, Tensor) or mapping
        As in `named_state`.
    tensors : mapping of str to Tensor
        Slots, on the CPU. They are copied; dtype and device become those of the
        parameters.
    scalars : mapping
        As `named_state` returned it, or as JSON brought it back.

    Raises
    ------
    CheckpointMismatchError
        If class, names or shapes differ; lists all differences and changes nothing.
    ValueError
        If the optimizer holds a parameter that `named_parameters` does not name.

    Examples
    --------
    >>> import torch
    >>> from skest.optimizers import load_named_state, make_optimizer, named_state
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
    for position, (name, _) in enumerate(_members(groups)):
        slots = {
            slot: tensors[f"{name}/{slot}"].detach().clone()
            for slot in scalars["slots"].get(name, ())
        }
        slots.update(scalars["values"].get(name, {}))
        if slots:
            state[position] = slots
    packed = optimizer.state_dict()["param_groups"]
    for group, saved in zip(packed, scalars["param_groups"], strict=True):
        for key, value in saved["options"].items():
            group[key] = _from_json(value, group.get(key))
    optimizer.load_state_dict({"state": state, "param_groups": packed})


def _named_groups(
    optimizer: Optimizer, named_parameters: NamedParameters
) -> list[dict[str, Tensor]]:
    """Parameter groups of an optimizer, each as {name: parameter}."""
    names = {param: name for name, param in dict(named_parameters).items()}
    for param in (p for group in optimizer.param_groups for p in group["params"]):
        if param not in names:
            raise ValueError(
                f"{_class_name(optimizer)} holds a parameter of shape "
                f"{tuple(param.shape)} that 'named_parameters' does not name; pass "
                "network.named_parameters() of the network it was made for."
            )
    return [{names[p]: p for p in group["params"]} for group in optimizer.param_groups]


def _members(groups: list[dict[str, Tensor]]) -> list[tuple[str, Tensor]]:
    return [member for group in groups for member in group.items()]


def _class_name(optimizer: Optimizer) -> str:
    rule = optimizer.inner if isinstance(optimizer, RowSparse) else optimizer
    return type(rule).__name__


def _options(group: dict[str, Any]) -> dict[str, Any]:
    left_out = _IMPLEMENTATION | {"params", "param_names"}
    return {
        key: _to_json(value, f"option {key!r}")
        for key, value in group.items()
        if key not in left_out
    }


def _to_json(value: Any, where: str) -> Any:
    if isinstance(value, np.generic) or (isinstance(value, Tensor) and not value.ndim):
        return value.item()
    if isinstance(value, list | tuple):
        return [_to_json(item, where) for item in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(
        f"The optimizer's {where} is of type {type(value).__name__}, which no "
        "checkpoint can hold; it must be a number, a string or a list of those, or for "
        "a slot a tensor."
    )


def _from_json(value: Any, current: Any) -> Any:
    """Return a saved option in the type that the optimizer keeps it in."""
    if isinstance(current, Tensor):
        return torch.full_like(current, value)
    return tuple(value) if isinstance(current, tuple) else value


def _differences(
    optimizer: Optimizer,
    groups: list[dict[str, Tensor]],
    tensors: Mapping[str, Tensor],
    scalars: Mapping[str, Any],
) -> list[str]:
    """All that keeps a saved state from being loaded, one line for each."""
    ours, theirs = _class_name(optimizer), scalars["class"]
    if ours != theirs:
        return [f"optimizer: expected {ours}, the saved state is of {theirs}"]
    here, there = len(groups), len(scalars["param_groups"])
    if here != there:
        return [f"parameter groups: expected {here}, the saved state has {there}"]
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
            problems += _slot_differences(name, group[name], kept, tensors, scalars)
    listed = {f"{name}/{s}" for name, of in scalars["slots"].items() for s in of}
    return problems + [f"unexpected: {key!r}" for key in tensors if key not in listed]


def _slot_differences(
    name: str,
    param: Tensor,
    kept: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
    scalars: Mapping[str, Any],
) -> list[str]:
    """Tell which saved slots of a parameter are missing or of a wrong shape."""
    problems = []
    expected = {s: v.shape for s, v in kept.items() if isinstance(v, Tensor)}
    for slot in {**expected, **dict.fromkeys(scalars["slots"].get(name, ()))}:
        key = f"{name}/{slot}"
        if key not in tensors:
            problems.append(f"missing: {key!r}")
            continue
        shape = tensors[key].shape
        # A slot that is made in the first step can be judged by its parameter only.
        fits = shape == expected[slot] if slot in expected else _spans(shape, param)
        if not fits:
            wanted = tuple(expected.get(slot, param.shape))
            problems.append(f"shape of {key!r}: expected {wanted}, got {tuple(shape)}")
    return problems


def _spans(shape: torch.Size, param: Tensor) -> bool:
    """Whether a slot of this shape is a scalar, or one value per element or slice."""
    if len(shape) in (0, param.ndim):
        return all(a in (1, b) for a, b in zip(shape, param.shape, strict=False))
    return False
