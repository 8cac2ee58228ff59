# SPDX-License-Identifier: Apache-2.0
"""`Resumable`: data that can be iterated again from the middle."""

from collections.abc import Iterator, Sequence
from typing import Any, Protocol, runtime_checkable

__all__ = ["Resumable"]


@runtime_checkable
class Resumable(Protocol):
    """What an interrupted training needs of its input, to go on where it was.

    `skest.inputs.ArrayDataset` and `skest.inputs.Pipeline` have it. Data without it are
    gone through from their beginning, without training, up to the position.
    """

    @property
    def kind(self) -> str:
        """What the data are, in words; a position is good only for data of its kind."""

    @property
    def seeds(self) -> list[int]:
        """The seeds of all random orders, whoever chose them."""

    @property
    def is_restartable(self) -> bool:
        """Whether the data can be iterated more than once."""

    def resumed(self, n_elements: int, seeds: Sequence[int]) -> Any:
        """Return the same data in the order of `seeds`, without the first elements."""

    def __iter__(self) -> Iterator[Any]: ...
