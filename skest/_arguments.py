# SPDX-License-Identifier: Apache-2.0
"""Checks of the arguments of `skest.Estimator` and of what it is given."""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import numpy as np

from skest.run_config import RunConfig

__all__ = ["Several", "as_tuple", "check_all", "check_config", "check_steps"]

T = TypeVar("T")
Several: TypeAlias = Iterable[T] | T | None


def check_config(
    config: RunConfig | None, model_dir: str | os.PathLike[str] | None
) -> RunConfig:
    """Return the configuration of an Estimator, `model_dir` in it.

    Raises
    ------
    ValueError
        If both name a directory, and not the same.
    TypeError
        If it is no RunConfig.
    """
    if config is None:
        config = RunConfig()
    if not isinstance(config, RunConfig):
        raise TypeError(f"'config' must be a RunConfig; got {type(config).__name__}.")
    if model_dir is None:
        return config
    if config.model_dir is not None and Path(config.model_dir) != Path(model_dir):
        raise ValueError(
            "'model_dir' is given twice, with different values: "
            f"{str(model_dir)!r} here and {str(config.model_dir)!r} in 'config'."
        )
    return config.replace(model_dir=model_dir)


def check_steps(**named: int | None) -> None:
    """Raise ValueError or TypeError unless at most one number is given, and positive."""
    given = {name: value for name, value in named.items() if value is not None}
    if len(given) > 1:
        raise ValueError(
            f"Only one of {' and '.join(map(repr, given))} can be given; got {given}."
        )
    for name, value in given.items():
        if isinstance(value, bool) or not isinstance(value, int | np.integer):
            raise TypeError(f"'{name}' must be an integer; got {value!r}.")
        if value <= 0:
            raise ValueError(f"'{name}' must be positive; got {value}.")


def as_tuple(values: Several[T]) -> tuple[T, ...]:
    """Return one object, several or none (None, as in TensorFlow) as a tuple."""
    if values is None:
        return ()
    return tuple(values) if isinstance(values, Iterable) else (values,)


def check_all(
    values: Several[Any], kind: type, name: str, owner: str | None = None
) -> list[Any]:
    """Return a list; raise TypeError if something in it is of another class."""
    objects = list(as_tuple(values))
    for value in objects:
        if not isinstance(value, kind):
            package = ".".join(kind.__module__.split(".")[:2])
            raise TypeError(
                f"'{name}'{f' of {owner}' if owner else ''} must be instances of "
                f"{package}.{kind.__name__}; got {value!r}."
            )
    return objects
