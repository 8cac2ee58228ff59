# SPDX-License-Identifier: Apache-2.0
"""State as plain data: containers, numbers, strings and NumPy arrays, and nothing else.

Estimators give this form to whatever saves them. So a file of skops, which asks its reader
to trust every type in it by name, holds a single one of skest; joblib maps the arrays into
memory; and a file made with a GPU can be read without one.
"""

import importlib
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

_PACKAGE = "skest"
# Key that tells a description of an object from a dictionary; its value is the kind.
_KIND = "__skest__"
_DICT, _PATH, _TENSOR = "dict", "path", "tensor"
_LEAVES = (str, bytes, int, float, np.ndarray, np.generic, type(None))
_FREQUENT_LEAVES = {str, int, float}


def to_plain(value: Any) -> Any:
    """Describe tensors, paths and objects of skest by plain data.

    Parameters
    ----------
    value : object
        Any nest of dictionaries, lists, tuples and sets. What is neither plain nor of
        skest, as a function of the user's, stays as it is.

    Returns
    -------
    object
        The same nest. What occurs in it twice occurs twice in the result.

    Examples
    --------
    >>> import torch
    >>> from skest.core.plain_state import from_plain, to_plain
    >>> from skest.heads import RegressionHead
    >>> plain = to_plain({"rate": 0.1, "weights": torch.ones(2)})
    >>> plain["weights"]["array"]
    array([1., 1.], dtype=float32)
    >>> to_plain(RegressionHead(name="price"))["__skest__"]
    'skest.heads.regression:RegressionHead'
    >>> from_plain(plain)["weights"]
    tensor([1., 1.])
    """
    return _Writer().write(value)


def from_plain(value: Any) -> Any:
    """Return what `to_plain` described; classes are looked for in skest only.

    Raises
    ------
    ValueError
        If a description names anything but a class of skest.
    """
    return _Reader().read(value)


class _Writer:
    def __init__(self) -> None:
        self._done: dict[int, tuple[Any, Any]] = {}  # with the object: ids are reused

    def write(self, value: Any) -> Any:
        if isinstance(value, _LEAVES):
            return value
        if id(value) not in self._done:
            # Once for each object, so that what is shared stays shared.
            self._done[id(value)] = value, self._plain(value)
        return self._done[id(value)][1]

    def _plain(self, value: Any) -> Any:
        kind = type(value)
        if kind is dict:
            return self._dict(value)
        if kind in (list, tuple, set):
            if _FREQUENT_LEAVES.issuperset(map(type, value)):
                return kind(value)  # such as a vocabulary, which may be long
            return kind(map(self.write, value))
        if isinstance(value, Tensor):
            return {_KIND: _TENSOR, **_tensor_state(value)}
        if isinstance(value, Path):
            return {_KIND: _PATH, "path": str(value)}
        if kind.__module__.partition(".")[0] != _PACKAGE:
            return value
        description = {_KIND: f"{kind.__module__}:{kind.__qualname__}"}
        # A named tuple has no __dict__: its items are its state.
        if isinstance(value, tuple):
            return {**description, "items": [*map(self.write, value)]}
        return {**description, "state": self.write(value.__getstate__())}

    def _dict(self, value: dict[Any, Any]) -> dict[str, Any]:
        if _KIND not in value and {str}.issuperset(map(type, value)):
            if _FREQUENT_LEAVES.issuperset(map(type, value.values())):
                return dict(value)  # such as the places of words
            return {key: self.write(item) for key, item in value.items()}
        # Keys of other types than str: some formats, such as JSON, would change them.
        pairs = [(self.write(key), self.write(item)) for key, item in value.items()]
        return {_KIND: _DICT, "items": pairs}


class _Reader:
    def __init__(self) -> None:
        self._done: dict[int, Any] = {}

    def read(self, value: Any) -> Any:
        if type(value) not in (dict, list, tuple, set):
            return value
        if id(value) not in self._done:
            self._done[id(value)] = self._made(value)
        return self._done[id(value)]

    def _made(self, value: Any) -> Any:
        if type(value) is not dict:
            return type(value)(map(self.read, value))
        kind = value.get(_KIND)
        if kind is None:
            return {key: self.read(item) for key, item in value.items()}
        if kind == _DICT:
            return {self.read(key): self.read(item) for key, item in value["items"]}
        if kind == _TENSOR:
            return _tensor(value["array"], value["dtype"])
        if kind == _PATH:
            return Path(value["path"])
        # Of skest only: a file must not be able to call what it likes.
        found = class_named(kind)
        if "items" in value and issubclass(found, tuple):  # calls no other constructor
            return found(*map(self.read, value["items"]))
        # Constructors may check and compute; a state has been through them.
        made: Any = object.__new__(found)
        state = self.read(value["state"])
        if hasattr(made, "__setstate__"):
            made.__setstate__(state)
        else:
            made.__dict__.update(state or {})
        return made


def _tensor_state(tensor: Tensor) -> dict[str, Any]:
    tensor = tensor.detach().cpu()
    name = str(tensor.dtype).removeprefix("torch.")
    if tensor.dtype == torch.bfloat16:  # which NumPy does not have
        tensor = tensor.view(torch.int16)
    return {"array": tensor.numpy(), "dtype": name}


def _tensor(array: Any, dtype: str) -> Tensor:
    # torch has no tensors that must not be written to; joblib maps files as such.
    tensor = torch.from_numpy(array if array.flags.writeable else array.copy())
    return tensor.view(torch.bfloat16) if dtype == "bfloat16" else tensor


def class_named(name: str) -> Any:
    """Return the class of skest that is called ``module:name``.

    Raises
    ------
    ValueError
        If there is no such class in skest.
    """
    module, _, path = name.partition(":")
    found: Any = None
    if module.partition(".")[0] == _PACKAGE:
        try:
            found = importlib.import_module(module)
        except ModuleNotFoundError as error:
            # Other versions may have another module; of another package, it is missing.
            if not str(error.name).startswith(_PACKAGE):
                raise
        for part in path.split("."):
            found = getattr(found, part, None)
    # A module of skest has names of others, too: "skest.core.files:os.system" is none.
    if not isinstance(found, type) or found.__module__ != module:
        raise ValueError(
            f"The saved state names {name!r}, which is no class of skest. The file was "
            "damaged, or made by another version."
        )
    return found
