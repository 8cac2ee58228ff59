# SPDX-License-Identifier: Apache-2.0
"""Optimizers and learning rates as Keras defines them, from those of this package.

Where a rule is another one here, it is that of this package; the tests say which. Only
what Keras does to gradients first, clipping, is added to the optimizer from outside.
"""

import math
from bisect import bisect_left
from functools import partial

from skest.optimizers import make_optimizer
from tests.golden._cases import refuse_unread

OPTIONS = {
    "amsgrad": "amsgrad",
    "beta": "beta",
    "centered": "centered",
    "epsilon": "eps",
    "initial_accumulator_value": "initial_accumulator_value",
    "l1_regularization_strength": "l1",
    "l2_regularization_strength": "l2",
    "l2_shrinkage_regularization_strength": "l2_shrinkage",
    "learning_rate_power": "lr_power",
    "momentum": "momentum",
    "nesterov": "nesterov",
    "rho": "alpha",
    "use_nesterov": "nesterov",
}
NAMES = {"GradientDescent": "sgd", "Momentum": "sgd"}
EPSILONS = {"AdamOptimizer": 1e-8, "RMSPropOptimizer": 1e-10}


def keras_optimizer(definition, rate=None):
    """What makes the optimizer of a definition; it knows every key, or raises.

    `definition` is a name, or a dictionary with the "optimizer" and its arguments; `rate`
    is for a definition that has none.
    """
    left = {"optimizer": definition} if isinstance(definition, str) else {**definition}
    name = left.pop("optimizer")
    options = {"eps": EPSILONS[name]} if name in EPSILONS else {}
    if "beta_1" in left or "beta_2" in left:
        options["betas"] = (left.pop("beta_1", 0.9), left.pop("beta_2", 0.999))
    learning_rate = left.pop("learning_rate", None)
    learning_rate = learning_rate_of(rate if learning_rate is None else learning_rate)
    if left.get("decay"):
        learning_rate = partial(_decayed, learning_rate, left["decay"])
    clipping = {key: left.pop(key) for key in CLIPPING if key in left}
    left.pop("decay", None)
    options |= {OPTIONS[key]: left.pop(key) for key in list(left) if key in OPTIONS}
    if not options.get("momentum"):
        # The original ignores it then; torch refuses it.
        options.pop("nesterov", None)
    refuse_unread(left, f"the optimizer {name}")
    short = name.removesuffix("Optimizer")
    return partial(_make, NAMES.get(short, short), learning_rate, options, clipping)


def _make(name, learning_rate, options, clipping, params):
    optimizer = make_optimizer(name, params, learning_rate, **options)
    for kind, limit in clipping.items():
        optimizer.register_step_pre_hook(partial(_clip, CLIPPING[kind], limit))
    return optimizer


# Learning rates, as functions of the number of steps taken


def learning_rate_of(definition):
    """A number, None, or the function that a schedule defines."""
    if not isinstance(definition, dict):
        return definition
    arguments = dict(definition)
    schedule = SCHEDULES[arguments.pop("schedule")]
    return partial(schedule, **arguments)


def _decayed(learning_rate, decay, step):
    rate = learning_rate(step) if callable(learning_rate) else learning_rate
    if rate is None:
        raise NotImplementedError("The runner needs a learning_rate beside a decay.")
    return rate / (1 + decay * step)


def exponential_decay(
    step, *, initial_learning_rate, decay_steps, decay_rate, staircase=False
):
    periods = step / decay_steps
    return initial_learning_rate * decay_rate ** (
        math.floor(periods) if staircase else periods
    )


def piecewise_constant_decay(step, *, boundaries, values):
    """A value holds up to its boundary, which belongs to it."""
    return values[bisect_left(boundaries, step)]


SCHEDULES = {
    "ExponentialDecay": exponential_decay,
    "PiecewiseConstantDecay": piecewise_constant_decay,
}


# Clipping


def _clip(clip, limit, optimizer, args, kwargs):
    clip([p for group in optimizer.param_groups for p in group["params"]], limit)


def _by_value(parameters, limit):
    for parameter in parameters:
        parameter.grad.clamp_(-limit, limit)


CLIPPING = {"clipvalue": _by_value}
