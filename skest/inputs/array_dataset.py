# SPDX-License-Identifier: Apache-2.0
"""`ArrayDataset`: a table in memory, cut into batches."""

import copy
from collections.abc import Iterator, Mapping, Sequence
from itertools import count, islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skest.core.checks import check_integer
from skest.core.random import seed_sequence
from skest.feature_columns.table import TableColumns
from skest.inputs.input_context import InputContext


class ArrayDataset:
    """Features and labels in memory, iterated in batches.

    It is what an ``input_fn`` returns for data that fits into memory. Because all rows
    are at hand, an Estimator encodes the table once and then takes batches by index.

    Parameters
    ----------
    features : dict of arrays, DataFrame or array
        Rows along the first dimension.
    labels : array, Series, DataFrame or dict of arrays, default=None
        As many rows as `features`. None if there are none (prediction).
    batch_size : int, default=128
        Rows of a batch; the last batch of an epoch may be smaller.
    shuffle : bool, default=False
        Draw a new order in every epoch.
    sampling_weight : array of shape (n_rows,), default=None
        If given, draw every row of every batch anew, with replacement and in proportion
        to these, whatever `shuffle` is. All batches are full.
    num_epochs : int or None, default=1
        How often the table is gone through; None is without end.
    seed : int, default=None
        Seed of the orders: epoch ``e`` always has the order given by ``(seed, e)``. None
        takes one from the operating system.
    first_epoch : int, default=0
        Number of the first epoch, for going on where an earlier dataset ended.

    Raises
    ------
    ValueError
        If there are no rows, features and labels differ in their number, a number is
        less than 1, or `sampling_weight` holds no weights of the rows.
    TypeError
        If `batch_size` or `num_epochs` is no integer.

    Examples
    --------
    >>> from skest.inputs import ArrayDataset
    >>> data = ArrayDataset({"x": [1, 2, 3]}, [0, 1, 0], batch_size=2)
    >>> for features, labels in data:
    ...     print(features["x"], labels)
    [1 2] [0 1]
    [3] [0]
    """

    #: The data can be iterated more than once, see `skest.inputs.Resumable`.
    is_restartable = True

    def __init__(
        self,
        features: Any,
        labels: Any = None,
        *,
        batch_size: int = 128,
        shuffle: bool = False,
        sampling_weight: Any = None,
        num_epochs: int | None = 1,
        seed: int | None = None,
        first_epoch: int = 0,
    ) -> None:
        # References, no copies: the table may be large.
        self.features = _as_arrays(features)
        self.labels = None if labels is None else _as_arrays(labels)
        self.n_rows = self._n_drawn = count_rows(self.features, "features")
        if self.labels is not None:
            check_same_rows(self.n_rows, count_rows(self.labels, "labels"))
        if self.n_rows == 0:
            raise ValueError(
                "'features' has 0 rows; at least one is needed. Check that the filter "
                "or file that it comes from is not empty."
            )
        check_integer(batch_size, "batch_size", "ArrayDataset", minimum=1)
        if num_epochs is not None:
            check_integer(num_epochs, "num_epochs", "ArrayDataset", minimum=1)
        # `batch_size` says how much memory a batch may take; fewer rows are no mistake.
        self.batch_size = min(int(batch_size), self.n_rows)
        self.shuffle = shuffle
        self._shares = (
            None if sampling_weight is None else _shares(sampling_weight, self.n_rows)
        )
        self.num_epochs = num_epochs
        self.first_epoch = first_epoch
        random = shuffle or self._shares is not None
        # Kept as a number: a checkpoint records it in JSON, and a resumed training
        # draws the same.
        self._entropy: Any = seed_sequence(seed).entropy if random else None
        self.n_skipped = 0  # batches that `resumed` leaves out

    @property
    def is_endless(self) -> bool:
        """Whether it has no end."""
        return self.num_epochs is None

    @property
    def kind(self) -> str:
        """Say what makes the batches what they are, besides seeds and values."""
        return (
            f"ArrayDataset(n_rows={self.n_rows}, batch_size={self.batch_size}, "
            f"shuffle={self.shuffle}, weighted={self._shares is not None})"
        )

    @property
    def seeds(self) -> list[int]:
        """The seed that all orders follow from; none if the order is the table's own."""
        return [] if self._entropy is None else [self._entropy]

    def resumed(self, n_elements: int, seeds: Sequence[int]) -> "ArrayDataset":
        """Return these data without their first batches.

        Parameters
        ----------
        n_elements : int
            How many batches to leave out.
        seeds : sequence of int
            `seeds` of the dataset whose orders to use.

        Returns
        -------
        ArrayDataset
            It shares the arrays, or is the same object if nothing differs.
        """
        # The same object keeps what was read of its features.
        if n_elements == 0 and list(seeds) == self.seeds:
            return self
        dataset = copy.copy(self)
        # Of this table, which may itself go on in the middle.
        dataset.n_skipped += n_elements
        if self._entropy is not None:
            (dataset._entropy,) = seeds
        return dataset

    def for_worker(self, context: InputContext) -> "ArrayDataset":
        """Return the part of one worker: every n-th row, in batches of the same size.

        Parameters
        ----------
        context : InputContext
            How many workers there are, and which one this is.

        Returns
        -------
        ArrayDataset
            Its orders follow from a seed of its own. With `sampling_weight`, it draws
            from all rows, as often as falls to one worker: its own rows might have
            more or less than their share of the weight. All workers have as many
            batches; see `InputContext.rows_of`.

        Raises
        ------
        ValueError
            If there are fewer rows than workers.

        Examples
        --------
        >>> from skest.inputs import ArrayDataset, InputContext
        >>> data = ArrayDataset({"x": range(5)}, batch_size=2)
        >>> part = data.for_worker(InputContext(num_input_pipelines=2))
        >>> [batch["x"].tolist() for batch in part]
        [[0, 2], [4]]
        """
        # Every n-th row and no block of them: of a sorted table, each worker would have
        # labels of its own kind.
        rows = context.rows_of(self.n_rows, self.batch_size)
        dataset = copy.copy(self)
        # Rows of an epoch of this worker, whether they are its own or drawn from all.
        dataset._n_drawn = len(np.arange(self.n_rows)[rows])
        dataset.batch_size = min(self.batch_size, dataset._n_drawn)
        if self._shares is None:
            # Where rows are drawn by weight, every worker draws from all of them.
            dataset.features, dataset.labels = self.take(rows)
            dataset.n_rows = dataset._n_drawn
        if self._entropy is not None:
            dataset._entropy = context.own_seed(self._entropy)
        return dataset

    @property
    def steps_per_epoch(self) -> int:
        """Number of batches in one epoch."""
        return -(-self._n_drawn // self.batch_size)

    @property
    def rows_per_epoch(self) -> int:
        """Number of rows in all batches of one epoch."""
        if self._shares is None:
            return self.n_rows
        return self.steps_per_epoch * self.batch_size

    def index_batches(self) -> Iterator[slice | NDArray[np.intp]]:
        """Yield the rows of one batch after the other.

        Yields
        ------
        slice or ndarray of int
            Slices if the order is the table's own, so that a batch is a view.
        """
        first, n_passed = divmod(self.n_skipped, self.steps_per_epoch)
        epochs = count() if self.num_epochs is None else range(self.num_epochs)
        for epoch in islice(epochs, first, None):
            order = self._order(self.first_epoch + epoch)
            # A range is cut without being gone through.
            starts = range(0, self.rows_per_epoch, self.batch_size)
            for start in starts[n_passed if epoch == first else 0 :]:
                rows = slice(start, start + self.batch_size)
                yield rows if order is None else order[rows]

    def pieces(self, n_rows: int) -> Iterator["ArrayDataset"]:
        """Yield pieces of about `n_rows` rows, whose batches together are those of all.

        Data with more than one epoch, or in an order of their own, are one piece.
        """
        # Whole batches, so that predictions do not depend on where a piece ends.
        size = max(1, n_rows // self.batch_size) * self.batch_size
        is_random = self.shuffle or self._shares is not None
        is_small = self.n_rows <= max(size, n_rows)
        if is_small or is_random or self.num_epochs != 1 or self.n_skipped:
            yield self
            return
        for start in range(0, self.n_rows, size):
            features, labels = self.take(slice(start, start + size))
            yield ArrayDataset(features, labels, batch_size=self.batch_size)

    def take(self, rows: slice | NDArray[np.intp]) -> tuple[Any, Any]:
        """Return features and labels (or None) of some rows."""
        labels = None if self.labels is None else take_rows(self.labels, rows)
        return take_rows(self.features, rows), labels

    def first_batch(self) -> tuple[Any, Any]:
        """Return features and labels of the table's first `batch_size` rows."""
        return self.take(slice(0, self.batch_size))

    def __iter__(self) -> Iterator[Any]:
        for rows in self.index_batches():
            features, labels = self.take(rows)
            yield features if labels is None else (features, labels)

    def _order(self, epoch: int) -> NDArray[np.intp] | None:
        """Return the rows of an epoch; None is the order of the table."""
        if self._shares is None and not self.shuffle:
            return None
        # Of the seed and the number of the epoch alone: a resumed training jumps to it.
        generator = np.random.default_rng(seed_sequence(self._entropy, epoch))
        if self._shares is None:
            return generator.permutation(self.n_rows)
        # By the inverse of the distribution function: np.random.choice checks and
        # copies the shares.
        # (rows_per_epoch,) numbers below the sum of all weights.
        draws = generator.random(self.rows_per_epoch) * self._shares[-1]
        # A draw may round up to the sum.
        last = len(self._shares) - 1
        return np.searchsorted(self._shares, draws, side="right").clip(max=last)


def _shares(weight: Any, n_rows: int) -> NDArray[np.float64]:
    """Return the cumulated weights up to the last row that has one."""
    # In float32, the weights of late rows would be lost in the sum.
    weight = np.asarray(weight, dtype=np.float64)
    if weight.shape != (n_rows,):
        raise ValueError(
            f"'sampling_weight' must have the shape ({n_rows},) of the rows; "
            f"got {weight.shape}."
        )
    if not np.isfinite(weight).all() or (weight < 0).any() or not weight.any():
        raise ValueError(
            "'sampling_weight' must be finite and not negative, and not all zero."
        )
    # Without rows of weight 0 at the end, on which a draw that is rounded up would
    # fall.
    return np.cumsum(weight)[: np.flatnonzero(weight)[-1] + 1]


def take_rows(data: Any, rows: slice | NDArray[np.intp]) -> Any:
    """Return some rows of an array, a DataFrame or a dictionary of arrays."""
    if isinstance(data, dict | Mapping):
        return {key: take_rows(value, rows) for key, value in data.items()}
    if hasattr(data, "iloc"):
        # By position, whatever the index is.
        return data.iloc[rows]
    return data[rows]


def count_rows(data: Any, name: str) -> int:
    """Return the number of rows of an array, a DataFrame or a dictionary of arrays.

    Raises
    ------
    ValueError
        If the values of a dictionary differ in length, or there are none.
    TypeError
        If `data` has no rows.
    """
    if isinstance(data, dict | Mapping):
        counts = {
            key: count_rows(value, f"{name}[{key!r}]") for key, value in data.items()
        }
        if not counts:
            raise ValueError(f"'{name}' is an empty dictionary; it needs a column.")
        if len(set(counts.values())) > 1:
            listed = ", ".join(f"{key!r}: {count}" for key, count in counts.items())
            raise ValueError(
                f"All columns of '{name}' must have the same number of rows; got {listed}."
            )
        return next(iter(counts.values()))
    shape = getattr(data, "shape", None)
    if not shape:
        raise TypeError(
            f"'{name}' must be an array, a DataFrame or a dictionary of arrays with rows "
            f"along the first dimension; got {type(data).__name__}."
        )
    return int(shape[0])


def _as_arrays(data: Any) -> Any:
    """Turn lists and scalars into arrays; leave arrays, tables and tensors as they are."""
    if isinstance(data, TableColumns):
        return data  # with what was read of them already
    if isinstance(data, dict | Mapping):
        return {key: _as_arrays(value) for key, value in data.items()}
    return data if hasattr(data, "shape") else np.asarray(data)


def check_same_rows(n_features: int, n_labels: int) -> None:
    """Raise ValueError if features and labels differ in their number of rows."""
    if n_features != n_labels:
        raise ValueError(
            "Features and labels must have the same number of rows; "
            f"got {n_features} and {n_labels}."
        )
