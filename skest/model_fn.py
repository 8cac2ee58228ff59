# SPDX-License-Identifier: Apache-2.0
"""Which arguments a model function takes."""

import functools
import inspect
from collections.abc import Callable
from typing import Any

__all__ = ["model_fn_arguments"]

_MODEL_FN_ARGUMENTS = ("features", "labels", "mode", "params", "config")


def model_fn_arguments(
    model_fn: Callable[..., Any], params: dict[str, Any] | None
) -> tuple[str, ...]:
    """Return the names of the arguments that `model_fn` wants.

    Parameters
    ----------
    model_fn : callable
        Arguments bound with ``functools.partial`` do not count, nor do keyword-only ones
        with a default.
    params : dict or None
        Hyperparameters that will be passed.

    Returns
    -------
    tuple of str
        Some of "features", "labels", "mode", "params" and "config".

    Raises
    ------
    ValueError
        If a mandatory argument is missing, one is unknown, or `params` has no place.
    TypeError
        If `model_fn` is not callable or `params` is no dict.

    Examples
    --------
    >>> from skest.model_fn import model_fn_arguments
    >>> model_fn_arguments(lambda features, mode: None, None)
    ('features', 'mode')
    """
    if not callable(model_fn):
        raise TypeError(
            f"'model_fn' must be a function; got {type(model_fn).__name__}."
        )
    bound = model_fn.keywords if isinstance(model_fn, functools.partial) else {}
    names = [
        name
        for name, parameter in inspect.signature(model_fn).parameters.items()
        if name not in bound and not _is_option(parameter)
    ]
    unknown = [name for name in names if name not in _MODEL_FN_ARGUMENTS]
    if unknown:
        raise ValueError(
            f"model_fn has the argument(s) {', '.join(map(repr, unknown))}, but only "
            f"{', '.join(_MODEL_FN_ARGUMENTS)} are passed, by name. Bind others with "
            "functools.partial or hand them over in 'params'."
        )
    for name in ("features", "mode"):
        if name not in names:
            raise ValueError(f"model_fn must take the argument '{name}'.")
    if params is not None and not isinstance(params, dict):
        raise TypeError(f"'params' must be a dict; got {type(params).__name__}.")
    if params and "params" not in names:
        raise ValueError(
            "'params' are given, but model_fn does not take the argument 'params'."
        )
    return tuple(names)


def _is_option(parameter: inspect.Parameter) -> bool:
    return (
        parameter.kind is parameter.KEYWORD_ONLY
        and parameter.default is not parameter.empty
        and parameter.name not in _MODEL_FN_ARGUMENTS
    )
