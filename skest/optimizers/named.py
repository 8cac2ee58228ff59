# SPDX-License-Identifier: Apache-2.0
"""Builds optimizers from what estimators take: names, classes, functions and lists."""

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import ParamsT

from skest.core.checks import check_not_negative, check_positive
from skest.core.resources import new_optimizer
from skest.optimizers.ftrl import Ftrl, ProximalAdagrad
from skest.optimizers.row_sparse import RowSparse, is_row_table
from skest.optimizers.schedules import RateFunction, attach_rate_function, rate_at
from skest.optimizers.state import IMPLEMENTATION_OPTIONS, NamedParameters

#: An optimizer: by name, a class of `torch.optim`, or a function of parameters.
OptimizerLike: TypeAlias = str | type[Optimizer] | Callable[[Any], Optimizer]
#: An optimizer, or pairs of a pattern of parameter names and one; the first match counts.
OptimizersLike: TypeAlias = OptimizerLike | Sequence[tuple[str, OptimizerLike]]


class NamedOptimizer(NamedTuple):
    """What an optimizer's name stands for: a class, its rate and its options."""

    cls: type[Optimizer]
    learning_rate: float
    options: Mapping[str, Any]


# Keras' epsilon; torch.optim has 1e-8 here and 1e-10 for Adagrad.
_ADAM = {"betas": (0.9, 0.999), "eps": 1e-7}

#: Optimizers by name, with their defaults; see `make_optimizer`.
OPTIMIZERS: Mapping[str, NamedOptimizer] = MappingProxyType(
    {
        # Keras begins at 0.1. From torch's 0, a first step is as large as the rate,
        # whatever the gradient.
        "adagrad": NamedOptimizer(
            torch.optim.Adagrad, 0.001, {"initial_accumulator_value": 0.1, "eps": 1e-7}
        ),
        "adam": NamedOptimizer(torch.optim.Adam, 0.001, _ADAM),
        "adamw": NamedOptimizer(torch.optim.AdamW, 0.001, _ADAM),
        "ftrl": NamedOptimizer(Ftrl, 0.001, {}),
        "momentum": NamedOptimizer(torch.optim.SGD, 0.01, {"momentum": 0.9}),
        "proximaladagrad": NamedOptimizer(ProximalAdagrad, 0.001, {}),
        # Keras' rho of 0.9 is alpha here, for which torch has 0.99.
        "rmsprop": NamedOptimizer(
            torch.optim.RMSprop, 0.001, {"alpha": 0.9, "eps": 1e-7}
        ),
        "sgd": NamedOptimizer(torch.optim.SGD, 0.01, {}),
    }
)


def make_optimizer(
    optimizer: OptimizerLike,
    params: ParamsT,
    learning_rate: float | RateFunction | None = None,
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
    learning_rate : float or callable, default=None
        Learning rate, > 0, or a function of the step that returns it, >= 0: the
        `skest.EstimatorSpec` that takes the optimizer applies it to every training
        step, see `skest.optimizers.schedules.FunctionLR`. None is the default of the
        name or of the class. A callable `optimizer` sets its own, and this number is
        not used.
    weight_decay : float, default=0.0
        Strength of weight decay, >= 0. It always replaces the default of a class, so
        that AdamW does not decay unless told so.
    **options
        Further arguments of the class, in the spelling of torch.optim,
        `skest.optimizers.Ftrl` or `skest.optimizers.ProximalAdagrad`; ``lr`` is
        `learning_rate`.

    Returns
    -------
    optimizer : torch.optim.Optimizer
        Wrapped in `skest.optimizers.RowSparse` if any parameter has the attribute
        ``is_row_table = True``.

    Raises
    ------
    TypeError
        If `optimizer` is an instance or nothing that makes one, if a callable returns
        something else, or for an option that the optimizer does not take.
    ValueError
        For an unknown name, a rate or decay out of range, weight decay where the
        optimizer has none, no parameters, or a function as the rate of a callable
        `optimizer` or beside rates of parameter groups.

    Notes
    -----
    Names and defaults are those of ``tf.keras.optimizers.legacy``; "adamw", "momentum"
    with the customary 0.9, and "ProximalAdagrad" of TensorFlow's first version are added.

    =============== ====================== ===== ===================================
    name            class                  rate  options
    =============== ====================== ===== ===================================
    adagrad         `torch.optim.Adagrad`  0.001 initial_accumulator_value=0.1, eps=1e-7
    adam            `torch.optim.Adam`     0.001 betas=(0.9, 0.999), eps=1e-7
    adamw           `torch.optim.AdamW`    0.001 betas=(0.9, 0.999), eps=1e-7
    ftrl            `Ftrl`                 0.001 initial_accumulator_value=0.1,
                                                 lr_power=-0.5
    momentum        `torch.optim.SGD`      0.01  momentum=0.9
    proximaladagrad skest's own            0.001 initial_accumulator_value=0.1
    rmsprop         `torch.optim.RMSprop`  0.001 alpha=0.9, eps=1e-7
    sgd             `torch.optim.SGD`      0.01
    =============== ====================== ===== ===================================

    Two epsilons are placed differently. Adam adds it to the bias-corrected root of the
    second moment, Keras to the uncorrected one; RMSprop with momentum adds it to the
    root, Keras under it.

    Momentum, too, is another one where the learning rate changes. torch accumulates
    gradients and multiplies the sum by the rate of the step; Keras multiplies each
    gradient by its rate before it accumulates. Two gradients of 1 with the rates 0.1 and
    0.01 and a momentum of 0.9 move a weight from 0 to -0.119 here, to -0.2 in Keras.
    While the rate is constant both are the same. Keras' rule is not offered.

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
    # Fresh graphs: an Estimator calls its model_fn anew in train, evaluate and predict.
    if isinstance(optimizer, Optimizer):
        raise TypeError(
            f"'optimizer' is an instance of {type(optimizer).__name__}. Every call "
            "builds a fresh network, but an instance is bound to the tensors of one "
            "network. Pass its name, its class, or a callable: "
            "optimizer=lambda params: torch.optim.Adam(params, lr=0.001)."
        )
    check_not_negative(weight_decay, "weight_decay", "an optimizer")
    items, leaves = _items_and_leaves(params)
    is_class = isinstance(optimizer, type) and issubclass(optimizer, Optimizer)
    takes_rate = is_class or isinstance(optimizer, str)
    # A callable was made with all it needs: a rate beside it would contradict its own.
    if takes_rate:
        learning_rate = _one_rate(learning_rate, options)
    rate = _first_rate(learning_rate, items)
    if takes_rate:
        made = _from_class(optimizer, items, leaves, rate, weight_decay, options)
        if callable(learning_rate):
            attach_rate_function(made, learning_rate)
    elif callable(optimizer) and not isinstance(optimizer, type):
        made = _from_callable(optimizer, items, learning_rate, weight_decay, options)
    else:
        raise TypeError(
            "'optimizer' must be a name, a torch.optim.Optimizer class or a "
            f"callable(params) that returns an optimizer, got {optimizer!r}."
        )
    # Most classes of torch refuse sparse gradients, or take a step over the whole table.
    if any(map(is_row_table, leaves)) and not isinstance(made, RowSparse):
        return RowSparse(made)
    return made


def make_optimizers(
    optimizer: OptimizersLike,
    named_parameters: NamedParameters,
    learning_rate: float | RateFunction | None = None,
    *,
    weight_decay: float = 0.0,
    **options: Any,
) -> list[Optimizer]:
    """Build fresh optimizers that share the parameters of a network.

    Parameters
    ----------
    optimizer : str, class, callable or list of (str, optimizer)
        As in `make_optimizer`, for all parameters; or pairs of a pattern and one of
        these, for the parameters whose names match. Patterns are those of a shell
        (`fnmatch`, case-sensitive): "*" is any text, dots included. The first match
        counts. ``functools.partial(make_optimizer, "adam", learning_rate=0.01)`` gives
        one of the list settings of its own.
    named_parameters : iterable of (str, Tensor) or mapping
        ``network.named_parameters()``.
    learning_rate, weight_decay, **options
        As in `make_optimizer`, for every optimizer.

    Returns
    -------
    list of torch.optim.Optimizer
        One for every pair, in their order.

    Raises
    ------
    TypeError
        If a list holds something else than pairs, `named_parameters` has no names, or
        as `make_optimizer`.
    ValueError
        If a parameter matches no pattern, a pattern no parameter that is left, a list
        is empty, or as `make_optimizer`.

    Examples
    --------
    >>> import torch
    >>> from skest.optimizers import make_optimizers
    >>> network = torch.nn.Linear(2, 1)
    >>> optimizers = make_optimizers(
    ...     [("*bias", "sgd"), ("*", "adam")], network.named_parameters(), 0.01
    ... )
    >>> [type(optimizer).__name__ for optimizer in optimizers]
    ['SGD', 'Adam']
    """
    parameters = _by_name(named_parameters)
    shares: list[tuple[Any, dict[str, Tensor]]] = [(optimizer, parameters)]
    if isinstance(optimizer, list | tuple):
        shares = _shares(optimizer, parameters)
    return [
        make_optimizer(
            one, share.items(), learning_rate, weight_decay=weight_decay, **options
        )
        for one, share in shares
    ]


def _by_name(named_parameters: NamedParameters) -> dict[str, Tensor]:
    items: Any = named_parameters
    items = list(items.items() if isinstance(items, Mapping) else items)
    for item in items:
        if not (isinstance(item, tuple) and isinstance(item[0], str)):
            raise TypeError(
                "'named_parameters' must hold pairs (name, parameter), as "
                f"network.named_parameters() does; got a {type(item).__name__}."
            )
    return dict(items)


def _shares(
    pairs: Sequence[Any], parameters: dict[str, Tensor]
) -> list[tuple[OptimizerLike, dict[str, Tensor]]]:
    """Deal the parameters out to the optimizers of a list."""
    left, shares = dict(parameters), []
    for pair in pairs:
        if not (
            isinstance(pair, list | tuple)
            and len(pair) == 2
            and isinstance(pair[0], str)
        ):
            raise TypeError(
                "'optimizer' as a list must hold pairs (pattern, optimizer), such as "
                f'("*bias", "sgd"); got {pair!r}.'
            )
        pattern, optimizer = pair
        # As a list of routes: a parameter goes to the first pattern that takes it.
        # `fnmatch` would not tell upper from lower case on Windows.
        names = [name for name in left if fnmatchcase(name, pattern)]
        if not names:
            raise ValueError(
                f"The pattern {pattern!r} of 'optimizer' matches no parameter that is "
                f"left to it. Left are {_quoted(left)} of {_quoted(parameters)}."
            )
        shares.append((optimizer, {name: left.pop(name) for name in names}))
    if left or not shares:
        raise ValueError(
            f"'optimizer' has no pattern that matches {_quoted(left)}. Add a last pair "
            '("*", optimizer) for what is left.'
        )
    return shares


def _quoted(names: Iterable[str]) -> str:
    return ", ".join(map(repr, names)) or "none"


def _items_and_leaves(params: ParamsT) -> tuple[list[Any], list[Tensor]]:
    """`params` as a list that can be read twice, and the parameters in it."""
    if isinstance(params, Tensor):
        raise TypeError("'params' must be an iterable of parameters, got one tensor.")
    # Copies of the groups: torch.optim writes its defaults into those that it is given.
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


def _one_rate(
    learning_rate: float | RateFunction | None, options: dict[str, Any]
) -> float | RateFunction | None:
    """Take ``lr`` out of the options: torch calls the learning rate so."""
    if "lr" not in options:
        return learning_rate
    rate = options.pop("lr")
    if learning_rate is not None:
        raise TypeError(
            f"'learning_rate' is given twice: learning_rate={learning_rate!r} and "
            f"lr={rate!r}. Leave one out."
        )
    return rate


def _first_rate(
    learning_rate: float | RateFunction | None, items: list[Any]
) -> float | None:
    """Return the rate of the first step."""
    if learning_rate is None:
        return None
    if not callable(learning_rate):
        check_positive(learning_rate, "learning_rate", "an optimizer")
        return float(learning_rate)
    if any(isinstance(item, dict) and "lr" in item for item in items):
        raise ValueError(
            "'learning_rate' is a function, which sets the rates of all parameter "
            "groups, but 'params' has groups with a rate of their own, 'lr'. Leave "
            "that out, or make several optimizers."
        )
    # For the constructor of the class; `FunctionLR` sets it anew.
    return rate_at(learning_rate, 0)


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
                "torch.optim.Optimizer class or a callable(params) will do as well. "
                '("sdca" is for LinearClassifier, LinearRegressor and LinearEstimator.)'
            )
        cls = named.cls
        if learning_rate is None:
            learning_rate = named.learning_rate
        # What the user says comes last, and counts.
        options = {**named.options, **_implementation(cls, leaves, options), **options}
    taken = inspect.signature(cls).parameters
    # Such a class hands options on, and refuses them itself.
    takes_any = any(p.kind is p.VAR_KEYWORD for p in taken.values())
    unknown = sorted(set(options) - set(taken))
    if unknown and not takes_any:
        raise TypeError(
            f"Optimizer {label!r} takes no option {unknown[0]!r}; its options are "
            f"{sorted(set(taken) - {'params', 'lr', 'weight_decay'})}."
        )
    # Also by 0: AdamW would decay by 0.01 otherwise, which nobody asked for.
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
    return new_optimizer(cls, items, **options)


def _implementation(
    cls: type[Optimizer], leaves: list[Tensor], options: dict[str, Any]
) -> dict[str, bool]:
    """Choose the fastest exact implementation on a CPU; elsewhere leave it to torch."""
    # They always go over all tensors at once.
    if cls in (Ftrl, ProximalAdagrad) or options.keys() & IMPLEMENTATION_OPTIONS:
        return {}
    if any(leaf.device.type != "cpu" for leaf in leaves):
        return {}
    if cls is torch.optim.Adagrad:
        return {"fused": True}
    # Fused Adam rounds the last elements of a tensor differently, so that an update of
    # a row would depend on the rows beside it, and on how tables are split.
    if issubclass(cls, torch.optim.Adam) and not any(map(is_row_table, leaves)):
        return {"fused": True}
    # Fused SGD stops at a parameter whose first gradient comes late.
    return {"foreach": True}


def _from_callable(
    factory: Callable[[Any], Any],
    items: list[Any],
    learning_rate: float | RateFunction | None,
    weight_decay: float,
    options: dict[str, Any],
) -> Optimizer:
    """Call a user's callable, which has all settings in itself."""
    if callable(learning_rate):
        raise ValueError(
            "A function as 'learning_rate' cannot be passed on to a callable "
            "'optimizer'; set it inside the callable: functools.partial("
            'make_optimizer, "adam", learning_rate=lambda step: 0.1 * 0.99**step).'
        )
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
