# SPDX-License-Identifier: Apache-2.0
"""Checks of arguments that several parts of skest share."""

import operator
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import numpy as np

__all__ = [
    "check_choice",
    "check_directory_name",
    "check_integer",
    "check_not_negative",
    "check_positive",
]

_REAL = int | float | np.integer | np.floating


def check_integer(value: Any, name: str, owner: str, minimum: int) -> None:
    """Raise unless `value` is an integer of at least `minimum`.

    Parameters
    ----------
    value : object
        What the user gave.
    name : str
        Name of the parameter.
    owner : str
        Whose parameter it is, as it should read in the message.
    minimum : int
        The smallest allowed value.

    Raises
    ------
    TypeError
        If `value` is no integer; True and False are none.
    ValueError
        If it is smaller than `minimum`.

    Examples
    --------
    >>> check_integer(0, "dimension", "column 'c'", 1)
    Traceback (most recent call last):
        ...
    ValueError: 'dimension' of column 'c' must be an integer of at least 1; got 0.
    """
    if isinstance(value, int | np.integer) and not isinstance(value, bool):
        if value >= minimum:
            return
        error: type[Exception] = ValueError
    else:
        error = TypeError
    raise error(
        f"'{name}' of {owner} must be an integer of at least {minimum}; got {value!r}."
    )


def check_positive(value: Any, name: str, owner: str) -> None:
    """Raise TypeError unless `value` is a real number, ValueError unless it is > 0."""
    _check_finite(value, f"'{name}' of {owner}", operator.gt, "greater than 0")


def check_not_negative(value: Any, name: str, owner: str) -> None:
    """Raise TypeError unless `value` is a real number, ValueError unless it is >= 0."""
    _check_finite(value, f"'{name}' of {owner}", operator.ge, "of at least 0")


def _check_finite(
    value: Any, where: str, compare: Callable[[Any, int], bool], bound: str
) -> None:
    if isinstance(value, _REAL) and not isinstance(value, bool):
        if compare(value, 0) and value < float("inf"):
            return
        error: type[Exception] = ValueError
    else:
        error = TypeError
    raise error(f"{where} must be a finite number {bound}; got {value!r}.")


def check_choice(value: Any, name: str, owner: str, choices: Collection[Any]) -> None:
    """Raise ValueError unless `value` is one of `choices`."""
    if not any(value is choice or value == choice for choice in choices):
        listed = ", ".join(map(repr, choices))
        raise ValueError(f"'{name}' of {owner} must be one of {listed}; got {value!r}.")


def check_directory_name(value: Any, name: str, owner: str) -> None:
    """Raise unless `value` is the name of one directory, which leads nowhere else.

    Raises
    ------
    TypeError
        If `value` is no string.
    ValueError
        If it is empty, a path, or what a file system does not take.

    Examples
    --------
    >>> check_directory_name("../test", "name", "evaluate")
    Traceback (most recent call last):
        ...
    ValueError: 'name' of evaluate must be the name of a directory; got '../test'.
    """
    if not isinstance(value, str):
        raise TypeError(f"'{name}' of {owner} must be a string; got {value!r}.")
    if value in ("", "..") or value != Path(value).name or set(value) & {"\\", "\0"}:
        raise ValueError(
            f"'{name}' of {owner} must be the name of a directory; got {value!r}."
        )
