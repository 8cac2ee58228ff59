# SPDX-License-Identifier: Apache-2.0
"""What code of the user's may remember in Python between two steps."""

import functools
import pickle
import random
import sys
from collections.abc import Iterable, Iterator
from itertools import islice
from types import FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
from torch import Tensor, nn

__all__ = ["random_states", "remembered", "remembered_by_modules"]

# What every module has, apart from hooks that are called in a step.
_OF_ALL_MODULES = frozenset(vars(nn.Module())) - {
    "_backward_hooks",
    "_backward_pre_hooks",
    "_forward_hooks",
    "_forward_pre_hooks",
}
_PLAIN = frozenset({bool, int, float, str, bytes, type(None)})
# More than a few are data, whose numbers would take too long to look at.
_MOST_HELD = 64
_MOST_OBJECTS = 256
# Their code remembers nothing; what their objects were given is looked at.
_KNOWN = frozenset(sys.stdlib_module_names) | {"numpy", "skest", "torch"}


def remembered(part: Any) -> list[Any]:
    """Return an object and what its code reads, as far as that can be found.

    These are attributes of objects, the contents of lists, dictionaries and tuples, and
    of functions the variables of enclosing functions, default values and the globals
    that they name. Modules of a network are returned, but not looked into.

    Parameters
    ----------
    part : object
        A function, a method, an object that is called, or what these hold.

    Returns
    -------
    list
        Of objects and numbers, in the same order whenever it is asked for.

    Examples
    --------
    >>> from functools import partial
    >>> from skest.execution.remembered import remembered
    >>> _, function, *read = remembered(partial(max, 2.0, key={"scale": 0.5}.get))
    >>> read[0], 2.0 in read
    ((2.0,), True)
    """
    return list(_reachable(part, set()))


def remembered_by_modules(modules: Iterable[nn.Module]) -> list[Any]:
    """Return what functions and containers of modules remember; see `remembered`."""
    found: list[Any] = []
    for module in modules:
        seen: set[int] = set()
        is_known = _is_known(module)
        if not is_known:
            for function in _functions_of(type(module)):
                found += _reachable(function, seen)
        for name, value in vars(module).items():
            if name in _OF_ALL_MODULES or type(value) in _PLAIN:
                continue
            if isinstance(value, dict) and not value:
                continue
            if not is_known or isinstance(value, dict) or callable(value):
                found += _reachable(value, seen)
    return found


def random_states() -> tuple[Any, ...]:
    """Return the states of the generators of Python and NumPy that all code shares."""
    return random.getstate(), pickle.dumps(np.random.get_state(legacy=False))


def _reachable(part: Any, seen: set[int]) -> Iterator[Any]:
    if isinstance(part, MethodType):  # made anew whenever one looks at it
        yield part.__func__
        part = part.__self__
    yield part
    if type(part) in _PLAIN or id(part) in seen or len(seen) > _MOST_OBJECTS:
        return
    seen.add(id(part))
    for item in islice(_held_by(part), _MOST_HELD):
        yield from _reachable(item, seen)


def _held_by(part: Any) -> Iterable[Any]:
    if isinstance(part, Tensor | nn.Module | ModuleType | type):
        return ()
    if isinstance(part, dict):
        return part.values()
    if isinstance(part, list | tuple):
        return part
    if isinstance(part, functools.partial):
        return part.func, part.args, part.keywords
    if isinstance(part, FunctionType):
        return () if _is_known(part) else _read_by(part)
    held = getattr(part, "__dict__", {}).values()
    if not _is_known(part):
        return (*held, *_functions_of(type(part)))
    return held if callable(part) or hasattr(part, "compute_loss") else ()


def _functions_of(kind: type) -> list[Any]:
    """Return the functions of a class, which may read variables of other functions."""
    own = [k for k in kind.__mro__ if not _is_known(k)]
    return [f for k in own for f in vars(k).values() if isinstance(f, FunctionType)]


def _read_by(function: FunctionType) -> Iterator[Any]:
    """Yield default values and the variables outside of a function that it reads."""
    yield from function.__defaults__ or ()
    yield from (function.__kwdefaults__ or {}).values()
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # not assigned yet
            yield None
    for name in function.__code__.co_names:
        if name in function.__globals__:
            yield function.__globals__[name]


def _is_known(part: Any) -> bool:
    return _is_known_origin(getattr(part, "__module__", None) or type(part).__module__)


@functools.cache
def _is_known_origin(module: str) -> bool:
    return module.partition(".")[0] in _KNOWN
