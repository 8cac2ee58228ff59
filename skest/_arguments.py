# SPDX-License-Identifier: Apache-2.0
"""Checks of the arguments of `skest.Estimator`."""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from skest.run_config import RunConfig

__all__ = ["check_all", "check_config", "check_steps"]


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


def check_all(values: Iterable[Any], kind: type, name: str) -> list[Any]:
    """Return a list; raise TypeError if something in it is of another class."""
    values = list(values)
    for value in values:
        if not isinstance(value, kind):
            raise TypeError(
                f"'{name}' must be instances of skest.hooks.{kind.__name__}; "
                f"got {value!r}."
            )
    return values
