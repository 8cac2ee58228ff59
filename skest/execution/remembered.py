# SPDX-License-Identifier: Apache-2.0
"""What code of the user's may remember in Python between two steps."""

import functools
import pickle
import random
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from io import IOBase
from itertools import islice
from types import (
    CodeType,
    FunctionType,
    MemberDescriptorType,
    MethodType,
    ModuleType,
)
from typing import Any

import numpy as np
from torch import Tensor, nn
from torch.jit import ScriptModule

__all__ = [
    "PLAIN",
    "hooks_of_tensor",
    "random_states",
    "remembered",
    "remembered_by_modules",
]

# Compared by what they are; all else in what is remembered by which object it is.
PLAIN = frozenset({bool, int, float, complex, str, bytes, type(None)})

# What every module has, apart from hooks that are called in a step.
_OF_ALL_MODULES = frozenset(vars(nn.Module())) - {
    "_backward_hooks",
    "_backward_pre_hooks",
    "_forward_hooks",
    "_forward_pre_hooks",
}
_COLLECTIONS = (dict, list, tuple, set, frozenset, deque)
# More than that are data, whose numbers would take too long to look at.
_MOST_HELD = 1024
_MOST_NUMBERS = 1024  # of an array
_MOST_OBJECTS = 256
_MOST_FOUND = 8192
# Their code remembers nothing; what their objects were given is looked at.
_LIBRARIES = frozenset({"skest", "torch"})
_PICKLED = frozenset(sys.stdlib_module_names) | {"numpy"}
_KNOWN = _LIBRARIES | _PICKLED


def remembered(part: Any) -> list[Any]:
    """Return an object and what its code reads, as far as that can be found.

    These are attributes of objects and of their classes; the contents of collections and
    of NumPy arrays; what pickle would save of objects of the standard library, such as the
    state of a generator of random numbers; and of functions, attributes, default values,
    the variables of enclosing functions, and the globals that they name, with the
    attributes of modules that they name. How far an iterator is cannot be seen, so that
    it is never the same. Modules of a network are returned, but not looked into.

    What is near comes first: of very much, only the first part is looked at.

    Parameters
    ----------
    part : object
        A function, a method, an object that is called, or what these hold.

    Returns
    -------
    list
        Of objects and of numbers, in the same order whenever it is asked for. A
        collection is there as the number of its items.

    Examples
    --------
    >>> from functools import partial
    >>> from skest.execution.remembered import remembered
    >>> scaled = partial(max, 2.0, key={"scale": 0.5}.get)
    >>> {max, 2.0, "scale", 0.5} <= set(remembered(scaled))
    True
    """
    return _found_from([part])


def remembered_by_modules(modules: Iterable[nn.Module]) -> list[Any]:
    """Return what functions, containers and hooks of modules remember; see `remembered`."""
    found: list[Any] = []
    for module in modules:
        is_known = _is_known(module)
        parts = [] if is_known else [type(module)]
        if isinstance(module, ScriptModule):
            parts += _of_script(module)
        for parameter in module._parameters.values():
            if parameter is not None:
                parts += hooks_of_tensor(parameter)
        for name, value in vars(module).items():
            if name in _OF_ALL_MODULES or type(value) in PLAIN:
                continue
            if isinstance(value, dict) and not value:
                continue
            if not is_known or isinstance(value, dict) or callable(value):
                parts.append(value)
        if parts:
            found += _found_from(parts)
    return found


def random_states() -> tuple[Any, ...]:
    """Return the states of the generators of Python and NumPy that all code shares."""
    return random.getstate(), pickle.dumps(np.random.get_state(legacy=False))


def _found_from(parts: Iterable[Any]) -> list[Any]:
    return list(islice(_reachable(parts), _MOST_FOUND))


def _reachable(parts: Iterable[Any]) -> Iterator[Any]:
    waiting = deque(parts)
    seen: dict[int, Any] = {}  # which keeps them, so that no two have the same id
    while waiting:
        part = waiting.popleft()
        if isinstance(part, MethodType):  # made anew whenever one looks at it
            waiting.append(part.__func__)
            part = part.__self__
        if isinstance(part, np.ndarray | np.generic):
            yield from _numbers(part)
        elif type(part) in PLAIN:
            yield part
        elif id(part) not in seen and len(seen) < _MOST_OBJECTS:
            seen[id(part)] = part
            itself, held = _looked_into(part)
            yield itself
            for item in held:
                if type(item) in PLAIN:
                    yield item
                else:
                    waiting.append(item)


def _numbers(array: np.ndarray | np.generic) -> Iterator[Any]:
    """Yield shape and type of an array, and the first of its elements."""
    yield from array.shape
    yield array.dtype.str
    first = array.flat[:_MOST_NUMBERS]
    yield first.tobytes()  # of objects, which they are


def _itself(part: Any) -> Any:
    """Return an object, or a new one instead of an iterator, which is never the same."""
    is_iterator = _is_of(_PICKLED, type(part)) and hasattr(type(part), "__next__")
    return object() if is_iterator and not isinstance(part, IOBase) else part


def _looked_into(part: Any) -> tuple[Any, list[Any]]:
    """Return what stands for an object, and what it holds.

    An object whose own code fails while it is looked at is never the same.
    """
    try:
        is_collection = isinstance(part, _COLLECTIONS)
        return len(part) if is_collection else _itself(part), [*_held_by(part)]
    except Exception:  # whatever the object thinks of being looked at
        return object(), []


def _held_by(part: Any) -> Iterable[Any]:
    """Return what an object consists of, and what its code reads."""
    kind = type(part)
    if isinstance(part, Tensor | nn.Module | ModuleType):
        return ()
    if isinstance(part, type):
        return () if _is_known(part) else _of_classes(part)
    if isinstance(part, FunctionType):
        return () if _is_known(part) else (*_read_by(part), *vars(part).values())
    held = _items(part) if isinstance(part, _COLLECTIONS) else _pickled(part)
    if not _is_known(kind):
        return (*held, *_attributes(part), kind)
    if _is_of(_PICKLED, kind):
        return held or _attributes(part)
    is_used = callable(part) or hasattr(part, "compute_loss")
    return (*held, *_attributes(part)) if is_used else held


def _items(part: Iterable[Any]) -> list[Any]:
    """Return the first items of a collection, of a dictionary keys and values."""
    if isinstance(part, dict):
        return [each for item in islice(part.items(), _MOST_HELD) for each in item]
    return list(islice(part, _MOST_HELD))


def _attributes(part: Any) -> Iterator[Any]:
    """Yield the values of attributes, those in slots among them."""
    attributes: dict[str, Any] = {}
    get: Callable[..., Any] = type(part).__getattribute__
    with suppress(AttributeError):  # unlike vars, this calls no __getattr__
        attributes = get(part, "__dict__")
    yield from attributes.values()
    for kind in type(part).__mro__:
        for slot in vars(kind).values():
            if isinstance(slot, MemberDescriptorType):
                with suppress(AttributeError):  # not assigned yet
                    yield slot.__get__(part)


def _pickled(part: Any) -> list[Any]:
    """Return what pickle saves of objects whose attributes are not all there is."""
    for kind in type(part).__mro__[:-1]:
        has_own_way = not vars(kind).keys().isdisjoint(("__reduce__", "__reduce_ex__"))
        if has_own_way and _is_of(_PICKLED, kind) and not hasattr(kind, "__next__"):
            reduce: Callable[..., Any] = kind.__reduce_ex__
            try:
                saved = reduce(part, pickle.HIGHEST_PROTOCOL)
            except Exception:  # whatever the object thinks of being pickled
                return []
            is_name = isinstance(saved, str)
            return [] if is_name else [*map(_without_iterator, saved[1:])]
    return []


def _without_iterator(part: Any) -> Any:
    return list(part) if isinstance(part, Iterator) else part


def _of_script(module: ScriptModule) -> list[Any]:
    """Return the attributes of a module of TorchScript, which are not in Python."""
    names = module._concrete_type.get_attributes()
    return [getattr(module, name) for name in names]


def hooks_of_tensor(tensor: Tensor) -> Iterator[Any]:
    """Yield the functions that are called when a tensor gets a gradient."""
    for hooks in (tensor._backward_hooks, tensor._post_accumulate_grad_hooks):
        if hooks:
            yield from hooks.values()


def _of_classes(kind: type) -> Iterator[Any]:
    """Yield functions and attributes of a class and of those that it derives from."""
    for base in kind.__mro__:
        if not _is_known(base):
            for name, value in vars(base).items():
                function = value
                if isinstance(value, property):
                    function = value.fget
                elif isinstance(value, classmethod | staticmethod):
                    function = value.__func__
                is_special = name.startswith("__") and name.endswith("__")
                if isinstance(function, FunctionType) or not is_special:
                    yield function


def _read_by(function: FunctionType) -> Iterator[Any]:
    """Yield default values and the variables outside of a function that it reads."""
    names = _names_in(function.__code__)
    yield from function.__defaults__ or ()
    yield from (function.__kwdefaults__ or {}).values()
    others = [sys.modules[name] for name in names if name in sys.modules]
    for cell in function.__closure__ or ():
        with suppress(ValueError):  # not assigned yet
            others.append(cell.cell_contents)
            yield cell.cell_contents
    yield from _named(names, function.__globals__)
    for module in others:  # imported in a function
        if isinstance(module, ModuleType) and not _is_known_origin(module.__name__):
            yield from _named(names, vars(module))


def _named(names: Iterable[str], variables: Mapping[str, Any]) -> Iterator[Any]:
    """Yield the variables with some names, with those of the modules among them."""
    for name in names:
        if name in variables:
            value = variables[name]
            yield value
            if isinstance(value, ModuleType) and not _is_known_origin(value.__name__):
                yield from _named([n for n in names if n != name], vars(value))


@functools.lru_cache(maxsize=1024)
def _names_in(code: CodeType) -> dict[str, None]:
    """Return the names of globals and attributes in a function and those within it."""
    names = dict.fromkeys(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            names |= _names_in(constant)
    return names


def _is_known(part: Any) -> bool:
    return _is_known_origin(getattr(part, "__module__", None) or type(part).__module__)


@functools.cache
def _is_known_origin(module: str) -> bool:
    return module.partition(".")[0] in _KNOWN


def _is_of(packages: frozenset[str], kind: type) -> bool:
    return kind.__module__.partition(".")[0] in packages
