# SPDX-License-Identifier: Apache-2.0
"""Ready-made input functions of what is in memory: arrays, DataFrames, generators."""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from skest.core.checks import check_integer, former_arguments
from skest.inputs.array_dataset import ArrayDataset
from skest.inputs.pipeline import Pipeline


def check_shuffle(shuffle: Any) -> None:
    """Raise ValueError unless it is a bool."""
    # No default, as in TensorFlow: predictions in another order would be as wrong as a
    # training in that of the table.
    if not isinstance(shuffle, bool | np.bool_):
        raise ValueError(
            "'shuffle' must be True (training) or False (evaluation and prediction); "
            f"got {shuffle!r}."
        )


def seed_in_run(seed: int | None, config: Any) -> int | None:
    """Return the seed of an input function in a run."""
    # A seed of the function goes before that of the run.
    return seed if seed is not None or config is None else config.random_seed


@former_arguments(
    num_threads="the table is in memory",
    queue_capacity="the table is in memory",
)
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
    check_shuffle(shuffle)

    def input_fn(config: Any = None) -> ArrayDataset:
        return ArrayDataset(
            x,
            y,
            batch_size=batch_size,
            shuffle=bool(shuffle),
            num_epochs=num_epochs,
            seed=seed_in_run(seed, config),
        )

    input_fn()  # refuses wrong data here, where it is given, rather than in training
    return input_fn


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
    # Rows are taken by position, while in pandas the index says what belongs together.
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

    # One for all calls: a pipeline is not used up.
    pipeline = Pipeline(rows).batch(batch_size)
    return lambda: pipeline
