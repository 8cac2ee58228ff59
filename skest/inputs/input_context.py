# SPDX-License-Identifier: Apache-2.0
"""`InputContext`: which part of the input a worker reads."""

from dataclasses import dataclass

import numpy as np

from skest.core.checks import check_integer
from skest.core.random import child_seed


@dataclass(frozen=True)
class InputContext:
    """What an ``input_fn`` that names ``input_context`` is told about its worker.

    It is told None if there is but one worker.

    Parameters
    ----------
    num_input_pipelines : int, default=1
        How many workers read the input, each a part of it.
    input_pipeline_id : int, default=0
        Number of this worker, from 0.

    Raises
    ------
    ValueError, TypeError
        If a number is no integer in its range.

    Notes
    -----
    As ``tf.distribute.InputContext``.

    Examples
    --------
    >>> from skest.inputs import InputContext, Pipeline
    >>> def input_fn(input_context):
    ...     n = input_context.num_input_pipelines
    ...     return Pipeline(range(7)).shard(n, input_context.input_pipeline_id)
    >>> list(input_fn(InputContext(num_input_pipelines=3, input_pipeline_id=1)))
    [1, 4]
    """

    num_input_pipelines: int = 1
    input_pipeline_id: int = 0

    def __post_init__(self) -> None:
        n, index = self.num_input_pipelines, self.input_pipeline_id
        check_integer(n, "num_input_pipelines", "InputContext", minimum=1)
        check_integer(index, "input_pipeline_id", "InputContext", 0, n - 1)

    def part_of(self, n: int, unit: str) -> slice:
        """Return which of several things this worker reads: every n-th.

        Parameters
        ----------
        n : int
            How many there are.
        unit : str
            What they are, for the message.

        Returns
        -------
        slice
            So things that are sorted, by label or time, are spread over the workers.

        Raises
        ------
        ValueError
            If there is not one for every worker.
        """
        if n < self.num_input_pipelines:
            raise ValueError(
                f"{self.num_input_pipelines} workers can't share {n} {unit}(s), of which "
                f"each needs at least one. Use fewer workers, or give more {unit}s."
            )
        # As `shard` of tf.data.
        return slice(self.input_pipeline_id, None, self.num_input_pipelines)

    def rows_of(
        self, n_rows: int, batch_size: int, drop_last: bool = False
    ) -> slice | np.ndarray:
        """Return which rows this worker reads in an epoch: every n-th.

        Where others have one more, which would be a batch by itself, it reads a row
        twice: workers that train together end with the first whose rows end. (The
        ``DistributedSampler`` of PyTorch fills up all parts.)

        Parameters
        ----------
        n_rows : int
            How many there are.
        batch_size : int
            Rows of a batch.
        drop_last : bool, default=False
            Whether rows that make no whole batch are left out.

        Raises
        ------
        ValueError
            If there is not one for every worker.

        Examples
        --------
        >>> from skest.inputs import InputContext
        >>> InputContext(2, 1).rows_of(5, batch_size=2)
        array([1, 3, 1])
        >>> InputContext(2, 1).rows_of(5, batch_size=3)
        slice(1, None, 2)
        """
        rows = self.part_of(n_rows, "row")
        own = range(n_rows)[rows]
        others_have_more = len(own) * self.num_input_pipelines < n_rows
        if others_have_more and (len(own) + drop_last) % batch_size == 0:
            return np.append(own, own[0])
        return rows

    def own_seed(self, seed: int) -> int:
        """Return the seed that this worker uses where `seed` was given for all."""
        return child_seed(seed, self.num_input_pipelines, self.input_pipeline_id)


def context_among(num_workers: int, index: int) -> InputContext | None:
    """Return which part of the input one of several workers reads; None is all of it."""
    # None, so that an input_fn of one process need not divide by 1.
    return InputContext(num_workers, index) if num_workers > 1 else None
