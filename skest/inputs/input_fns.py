# SPDX-License-Identifier: Apache-2.0
"""Ready-made input functions for arrays, DataFrames and generators of rows.

Any function that returns an iterable of ``(features, labels)`` batches is an
``input_fn``; those here save writing it.
"""

import functools
import inspect
from collections.abc import Callable, Iterable
from types import FunctionType
from typing import Any

import numpy as np

from skest._checks import check_integer
from skest._former_arguments import former_arguments
from skest.inputs.array_dataset import ArrayDataset
from skest.inputs.pipeline import Pipeline

__all__ = ["call_input_fn", "generator_input_fn", "numpy_input_fn", "pandas_input_fn"]

_NO_QUEUE = "leave it out: rows come from memory, without a queue"
_INPUT_FN_ARGUMENTS = ("mode", "params", "config", "input_context")


@former_arguments(queue_capacity=_NO_QUEUE, num_threads=_NO_QUEUE)
def numpy_input_fn(
    x: Any,
    y: Any = None,
    batch_size: int = 128,
    num_epochs: int | None = 1,
    shuffle: bool | None = None,
    seed: int | None = None,
) -> Callable[..., ArrayDataset]:
    """Return an input function over arrays in memory.

    Parameters
    ----------
    x : dict of ndarray or ndarray
        Features, rows along the first dimension.
    y : ndarray or dict of ndarray, default=None
        Labels.
    batch_size : int, default=128
        Rows of a batch.
    num_epochs : int or None, default=1
        How often the data is gone through; None is without end.
    shuffle : bool
        Whether every epoch has an order of its own. It has no default, because the
        answer differs between training and prediction and a wrong one is not noticed.
    seed : int, default=None
        Seed of the orders; None takes ``random_seed`` of the `RunConfig`.

    Returns
    -------
    callable
        ``input_fn(config=None) -> ArrayDataset``.

    Raises
    ------
    ValueError
        If `shuffle` is not a bool, there are no rows, or `x` and `y` differ in length.

    Notes
    -----
    As ``tf.compat.v1.estimator.inputs.numpy_input_fn``, but a batch ends with the epoch: 10
    rows in batches of 4, gone through three times, are 9 batches. The original has 8 that
    run over the end of an epoch, as has
    ``Pipeline(ArrayDataset(x, y)).unbatch().repeat(3).batch(4)``. So no batch has more rows
    than there are.

    Examples
    --------
    >>> import numpy as np
    >>> from skest.inputs import numpy_input_fn
    >>> input_fn = numpy_input_fn({"x": np.arange(3)}, batch_size=2, shuffle=False)
    >>> [batch["x"].tolist() for batch in input_fn()]
    [[0, 1], [2]]
    """
    if not isinstance(shuffle, bool | np.bool_):
        raise ValueError(
            "'shuffle' must be True (training) or False (evaluation and prediction); "
            f"got {shuffle!r}."
        )

    def input_fn(config: Any = None) -> ArrayDataset:
        run_seed = seed if config is None or seed is not None else config.random_seed
        return ArrayDataset(
            x,
            y,
            batch_size=batch_size,
            shuffle=bool(shuffle),
            num_epochs=num_epochs,
            seed=run_seed,
        )

    input_fn()  # refuses wrong data here, where it is given, rather than in training
    return input_fn


@former_arguments(
    queue_capacity=_NO_QUEUE, num_threads=_NO_QUEUE, target_column="leave it out"
)
def pandas_input_fn(
    x: Any,
    y: Any = None,
    batch_size: int = 128,
    num_epochs: int | None = 1,
    shuffle: bool | None = None,
    seed: int | None = None,
) -> Callable[..., ArrayDataset]:
    """Return an input function over a DataFrame.

    Parameters
    ----------
    x : DataFrame
        Features; a column is found by its name.
    y : Series or DataFrame, default=None
        Labels with the same index as `x`.
    batch_size, num_epochs, shuffle, seed
        As for `numpy_input_fn`.

    Returns
    -------
    callable
        ``input_fn(config=None) -> ArrayDataset``.

    Raises
    ------
    TypeError
        If `x` is not a DataFrame.
    ValueError
        If the indices of `x` and `y` differ, or as for `numpy_input_fn`.

    Notes
    -----
    As ``tf.compat.v1.estimator.inputs.pandas_input_fn``, but labels are always given as
    `y` and never looked for in `x`, and a batch ends with the epoch, see `numpy_input_fn`.

    Examples
    --------
    >>> import pandas as pd
    >>> from skest.inputs import pandas_input_fn
    >>> table = pd.DataFrame({"city": ["Rome", "Oslo"], "sold": [3, 1]})
    >>> input_fn = pandas_input_fn(table[["city"]], table["sold"], shuffle=False)
    >>> features, labels = next(iter(input_fn()))
    >>> labels.tolist()
    [3, 1]
    """
    if not hasattr(x, "iloc"):
        raise TypeError(f"'x' must be a pandas DataFrame; got {type(x).__name__}.")
    if y is not None and hasattr(y, "index") and not x.index.equals(y.index):
        raise ValueError(
            "'x' and 'y' must have the same index, or their rows would not belong "
            "together. Align them, for example with y.loc[x.index]."
        )
    return numpy_input_fn(x, y, batch_size, num_epochs, shuffle, seed)


def generator_input_fn(
    rows: Callable[[], Iterable[Any]], batch_size: int = 128
) -> Callable[[], Pipeline]:
    """Return an input function that collects single rows into batches.

    Parameters
    ----------
    rows : callable
        ``rows()`` returns an iterable of ``(features, label)`` or of features; features
        are a dictionary of values, or an array. It is called anew for every pass.
    batch_size : int, default=128
        Rows of a batch.

    Returns
    -------
    callable
        ``input_fn() -> Pipeline`` of batches.

    Raises
    ------
    TypeError
        If `rows` is not callable (a generator itself can be used up only once) or
        `batch_size` is no integer.
    ValueError
        If `batch_size` is less than 1.

    Examples
    --------
    >>> from skest.inputs import generator_input_fn
    >>> def rows():
    ...     for i in range(3):
    ...         yield {"x": i, "word": "ab"[i % 2]}, i % 2
    >>> for features, labels in generator_input_fn(rows, batch_size=2)():
    ...     print(features["x"], features["word"], labels)
    [0 1] ['a' 'b'] [0 1]
    [2] ['a'] [0]
    """
    if not callable(rows):
        raise TypeError(
            "'rows' must be a function that returns an iterable, so that every call of "
            f"train, evaluate or predict can start anew; got {type(rows).__name__}. "
            "Pass the generator function without calling it."
        )
    check_integer(batch_size, "batch_size", "generator_input_fn", minimum=1)

    pipeline = Pipeline(rows).batch(batch_size)
    return lambda: pipeline


def call_input_fn(input_fn: Callable[..., Any], **available: Any) -> Any:
    """Call `input_fn` with those of `available` that it names.

    Raises
    ------
    TypeError
        If it is not callable or requires an argument that is not available.
    """
    if not callable(input_fn):
        raise TypeError(
            "'input_fn' must be a function that returns an iterable of batches; "
            f"got {type(input_fn).__name__}. Wrap data as `lambda: data`, or use "
            "skest.inputs.numpy_input_fn."
        )
    if isinstance(input_fn, FunctionType) and not input_fn.__code__.co_varnames:
        return input_fn()  # the usual case, for which reading a signature takes long
    parameters = inspect.signature(input_fn).parameters
    missing = [
        name
        for name, parameter in parameters.items()
        if name not in available
        and parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    ]
    if missing:
        raise TypeError(
            f"input_fn requires {', '.join(map(repr, missing))}, but only "
            f"{', '.join(_INPUT_FN_ARGUMENTS)} are passed (those that it names)."
        )
    bound = input_fn.keywords if isinstance(input_fn, functools.partial) else {}
    wanted = parameters.keys() - bound.keys()
    return input_fn(**{k: v for k, v in available.items() if k in wanted})
