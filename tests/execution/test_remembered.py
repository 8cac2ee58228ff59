# SPDX-License-Identifier: Apache-2.0
"""Whatever kind of state code keeps in Python, changes of it are seen."""

import argparse
import collections
import dataclasses
import functools
import itertools
import random
import sys
import threading
import types

import numpy as np
import pytest
import torch
from torch import nn

from skest.execution import GraphStep
from skest.execution.impurity import are_same
from skest.execution.remembered import remembered, remembered_by_modules
from skest.training import train_step
from tests.execution._steps import (
    assert_change_counts,
    batches,
    make_spec,
    mean_square,
    mlp,
    run_both,
)

N_CALLS = 0


@dataclasses.dataclass(slots=True)
class Slots:
    n: int = 0


class InClass:
    n = 0
    __secret = 0

    def __call__(self):
        type(self).n += 1
        return self.n

    @classmethod
    def count(cls):
        cls.__secret += 1
        return cls.__secret

    @property
    def counted(self):
        self._n = getattr(self, "_n", 0) + 1
        return self._n


class OwnDeque(collections.deque):
    pass


class OwnRandom(random.Random):
    pass


def changed_by(state, change):
    """Return a function that changes what it holds, and returns a number."""
    return lambda: float(change(state) or 0)


def increased(state):
    state[0] += 1
    return state[0]


def grown(state):
    state.append(0)


def named(state):
    state.n += 1
    return state.n


def of_module():
    module = types.ModuleType("settings_of_a_test")
    module.n, module.inner = 0, types.SimpleNamespace(n=0)
    sys.modules[module.__name__] = module
    return module


def imported():
    import settings_of_a_test

    settings_of_a_test.n += 1
    return settings_of_a_test.n


def of_global():
    def inner():
        global N_CALLS
        N_CALLS += 1
        return N_CALLS

    return inner()


def with_attribute():
    def function():
        function.n = getattr(function, "n", 0) + 1
        return function.n

    return function


def in_module_of_closure():
    settings = of_module()

    def function():
        settings.n += 1
        return settings.n

    return function


def cached():
    counts = [0]
    return functools.lru_cache(lambda: increased(counts))


MAKE = {
    "class": lambda: InClass(),
    "class method": lambda: InClass.count,
    "property": lambda: changed_by(InClass(), lambda x: x.counted),
    "slots": lambda: changed_by(Slots(), named),
    "SimpleNamespace": lambda: changed_by(types.SimpleNamespace(n=0), named),
    "Namespace": lambda: changed_by(argparse.Namespace(n=0), named),
    "array": lambda: changed_by(np.zeros(3), increased),
    "array of objects": lambda: changed_by(np.array([0, None]), increased),
    "late in a list": lambda: changed_by(
        [0] * 100, lambda x: x.__setitem__(80, x[80] + 1)
    ),
    "deque": lambda: changed_by(collections.deque(), grown),
    "own deque": lambda: changed_by(OwnDeque(), grown),
    "set": lambda: changed_by(set(), lambda x: x.add(len(x))),
    "key": lambda: changed_by({}, lambda x: x.__setitem__("a", None)),
    "Counter": lambda: changed_by(collections.Counter(), lambda x: x.update("a")),
    "Random": lambda: changed_by(random.Random(0), lambda x: x.random()),
    "own Random": lambda: changed_by(OwnRandom(0), lambda x: x.random()),
    "Generator": lambda: changed_by(np.random.default_rng(0), lambda x: x.random()),
    "RandomState": lambda: changed_by(np.random.RandomState(0), lambda x: x.rand()),
    "count": lambda: changed_by(itertools.count(), next),
    "iterator": lambda: changed_by(iter([1, 2, 3]), next),
    "generator": lambda: changed_by((i for i in range(9)), next),
    "partial": lambda: functools.partial(increased, [0]),
    "cache": cached,
    "thread": lambda: changed_by(
        threading.local(), lambda x: setattr(x, "n", getattr(x, "n", 0) + 1)
    ),
    "global of an inner function": lambda: of_global,
    "attribute of the function": with_attribute,
    "module of an enclosing function": in_module_of_closure,
    "module imported in the function": lambda: of_module() and imported,
}


@pytest.mark.parametrize("what", MAKE)
def test_changes_are_seen(what):
    function = MAKE[what]()
    before = remembered(function)
    function()
    assert not are_same(before, remembered(function))


@pytest.mark.parametrize(
    "what", sorted(MAKE.keys() - {"count", "iterator", "generator"})
)
def test_what_does_not_change_is_the_same(what):
    function = MAKE[what]()
    assert are_same(remembered(function), remembered(function))


def test_attributes_of_the_class_of_a_module():
    class Own(nn.Linear):
        scale = 1.0

    modules = [Own(2, 1)]
    before = remembered_by_modules(modules)
    Own.scale = 2.0
    assert not are_same(before, remembered_by_modules(modules))


@pytest.mark.parametrize(
    "state",
    [
        threading.Lock(),
        sys.stdout,
        torch.Generator(),
        np.add,
        len,
        object(),
        Slots,
        functools.cached_property(len),
    ],
    ids=lambda state: type(state).__name__,
)
def test_what_nobody_changes_is_the_same(state):
    function = functools.partial(mean_square, state)
    assert are_same(remembered(function), remembered(function))


def test_an_object_that_refuses_to_be_pickled():
    class Own(random.Random):
        def __reduce__(self):
            raise RuntimeError("not me")

    state = Own()
    assert state in remembered(functools.partial(max, state))


class AttributeDict(dict):
    __getattr__ = dict.__getitem__


class SlotDict(dict):
    __slots__ = ()
    __getattr__ = dict.__getitem__


class Holding:
    of_class = AttributeDict(n=0)
    of_class_in_slots = SlotDict(n=0)

    def __init__(self):
        self.of_object, self.in_slots = AttributeDict(n=0), SlotDict(n=0)


@pytest.mark.parametrize(
    "name", ["of_class", "of_class_in_slots", "of_object", "in_slots"]
)
def test_dictionaries_whose_items_are_attributes(name):
    holding = Holding()

    def function():
        return holding.of_class.n + holding.of_object.n

    before = remembered(function)
    assert are_same(before, remembered(function))
    getattr(holding, name)["n"] = 1
    assert not are_same(before, remembered(function))


def test_steps_with_such_dictionaries_are_replayed():
    class Own(nn.Linear):
        settings = AttributeDict(scale=2.0)

        def __init__(self, *sizes):
            super().__init__(*sizes)
            self.own = SlotDict(shift=1.0)

        def forward(self, x):
            return super().forward(x) * self.settings.scale + self.own.shift

    def make():
        torch.manual_seed(0)
        return make_spec(Own(3, 1))

    step, reports = run_both(make, batches(6))
    assert (step.n_replayed, reports) == (3, [])


class Unwilling(dict):
    """Fails whenever somebody looks at it."""

    def items(self):
        raise RuntimeError("not me")

    def __getattribute__(self, name):
        raise KeyError(name)


def test_steps_with_what_cannot_be_looked_at_stay_eager():
    unwilling = Unwilling()

    def loss(labels, logits, features):
        return mean_square(labels, logits, features) + 0 * dict.__len__(unwilling)

    assert not are_same(remembered(loss), remembered(loss))
    step, reports = run_both(lambda: make_spec(mlp(), loss=loss), batches(6))
    assert step.n_replayed == 0
    assert len(reports) == 1


def test_attributes_of_scripted_modules():
    class Late(nn.Module):
        n: int
        by_name: dict[str, int]

        def __init__(self):
            super().__init__()
            self.layer, self.n, self.by_name = nn.Linear(3, 1), 0, {"n": 0}

        def forward(self, x):
            self.n += 1
            y = self.layer(x)
            if self.n > 8:
                y = 2.0 * y
            return y

    def make():
        torch.manual_seed(0)
        return make_spec(torch.jit.script(Late()))

    step, reports = run_both(make, batches(12), is_watched=False)
    assert step.n_replayed == 0
    assert "the model changes in a step what its Python code reads" in reports[0]

    module = torch.jit.script(Late())
    before = remembered_by_modules([module])
    assert are_same(before, remembered_by_modules([module]))
    module.by_name = {"n": 1}
    assert not are_same(before, remembered_by_modules([module]))


def test_very_much_is_looked_at_in_part():
    far = [list(range(2000)) for _ in range(2000)]
    assert len(remembered(lambda: far)) < 10_000


@pytest.mark.parametrize("what", ["class", "slots", "array", "Random", "generator"])
@pytest.mark.parametrize("is_watched", [False, True])
def test_code_that_changes_its_numbers_late_stays_eager(what, is_watched):
    def make():
        InClass.n = 0
        function = MAKE[what]()

        def loss(labels, logits, features):
            return mean_square(labels, logits, features) * (1 + (function() > 5))

        return make_spec(mlp(), loss=loss)

    reports = []
    step = GraphStep(
        make(), eager_steps=1, report=reports.append, is_watched=is_watched
    )
    for batch in batches(6):
        step(*batch)
    assert (step.n_replayed, reports) == (
        0,
        [
            "Training steps are taken eagerly: the model changes in a step what its "
            "Python code reads."
        ],
    )


def set_array(state):
    state[0] = 0.5


def set_name(state):
    state.n = 0.5


WEIGHTS = {
    "array": (lambda: np.ones(1), lambda s: float(s[0]), set_array),
    "Namespace": (lambda: argparse.Namespace(n=1), lambda s: s.n, set_name),
    "SimpleNamespace": (lambda: types.SimpleNamespace(n=1), lambda s: s.n, set_name),
    "slots": (lambda: Slots(1), lambda s: s.n, set_name),
    "deque": (lambda: collections.deque([1]), lambda s: s[0], set_array),
}


@pytest.mark.parametrize("kind", WEIGHTS)
def test_what_hooks_change_is_recorded_anew(kind):
    make_state, read, change = WEIGHTS[kind]

    def make():
        state = make_state()
        loss = lambda y, z, x: read(state) * mean_square(y, z, x)  # noqa: E731
        return state, make_spec(mlp(), loss=loss)

    (of_eager, eager), (of_graph, graph) = make(), make()
    assert_change_counts(change, eager, graph, [of_eager, of_graph])


def test_autocast_that_hooks_turn_on_is_recorded_anew():
    eager, graph = make_spec(mlp()), make_spec(mlp())
    step = GraphStep(graph, eager_steps=1, report=print)
    for i, (features, labels) in enumerate(batches(12)):
        with torch.autocast("cpu", enabled=i >= 6):
            expected = train_step(eager, features, labels)
            assert torch.equal(step(features, labels), expected)
    assert step.n_replayed > 3


def test_collections_and_arrays_that_stay_are_no_obstacle():
    weights = np.ones(3, np.float32)

    def loss(labels, logits, features):
        scale = torch.as_tensor(weights[0] * len(NAMES))
        return mean_square(labels, logits, features) * float(scale.numel())

    step, reports = run_both(lambda: make_spec(mlp(), loss=loss), batches(6))
    assert (step.n_replayed, reports) == (3, [])


NAMES = {"a", "b"}
