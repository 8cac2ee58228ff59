# SPDX-License-Identifier: Apache-2.0
"""The device side of piecewise-linear columns: tables at the ends of bins."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from skest.feature_columns.piecewise import PiecewiseLinearColumn

__all__ = ["CodeOutput", "Interpolation", "grouped"]


class CodeOutput(NamedTuple):
    """Output of a piecewise-linear column that has no table: its code."""

    column: str
    key: str
    weight_key: str
    encoding: str
    sizes: Sequence[int]

    @classmethod
    def of(cls, column: PiecewiseLinearColumn) -> "CodeOutput":
        """Return the output of a column whose edges are known."""
        keys = (column.name, column.encoded_key, column.weight_key)
        return cls(*keys, column.encoding, column.code_sizes)

    def __call__(self, encoded: Mapping[str, Tensor], dtype: torch.dtype) -> Tensor:
        """Return the output of the column, of shape (n_rows, size)."""
        ids = encoded[self.key]
        places = torch.arange(max(self.sizes), device=ids.device)
        # From the place of each number of the code to that of x.
        ahead = (ids.unsqueeze(-1) - places).to(dtype)
        ahead = ahead + encoded[self.weight_key].to(dtype).unsqueeze(-1)
        if self.encoding == "ple":
            code = ahead.clamp(0, 1)
        else:
            code = (1 - ahead.abs()).clamp(min=0)
        return torch.cat(
            [
                part[:, :size]
                for part, size in zip(code.unbind(1), self.sizes, strict=True)
            ],
            dim=1,
        )


class Interpolation(nn.Module):
    """Functions of numbers, from tables of what they are at the edges.

    Those of all elements of some columns are computed together. A function is linear
    between edges; of a column of encoding "onehot" it is constant. A "ple" table has what
    a function rises by in each bin, from zero, others have its values.

    Parameters
    ----------
    columns : sequence of PiecewiseLinearColumn
        All of one encoding. Their edges must be known.

    Examples
    --------
    >>> import torch
    >>> from skest.feature_columns import FeatureColumns, numeric_column
    >>> from skest.feature_columns import piecewise_linear_column
    >>> from skest.feature_columns.interpolation import Interpolation
    >>> column = piecewise_linear_column(numeric_column("age"), [0, 20, 40])
    >>> encoded = FeatureColumns([column]).encode({"age": [10, 30, 99]})
    >>> Interpolation([column])([torch.tensor([[4.0], [8.0]])], encoded)
    tensor([[[ 2.]],
    <BLANKLINE>
            [[ 8.]],
    <BLANKLINE>
            [[12.]]])
    """

    rows: Tensor
    first: Tensor

    def __init__(self, columns: Sequence[PiecewiseLinearColumn]) -> None:
        super().__init__()
        self.columns = [column.name for column in columns]
        self.keys = [column.encoded_key for column in columns]
        self.weight_keys = [column.weight_key for column in columns]
        self.n_elements = [len(column.code_sizes) for column in columns]
        self.encoding = columns[0].encoding
        sizes = torch.tensor([size for column in columns for size in column.code_sizes])
        # Every element gets as many knots. The first ones stand for missing numbers, and
        # are zero, as is the beginning of what rises.
        n_first = 2 if self.encoding == "ple" else 1
        n_knots = n_first + int(sizes.max())
        places = torch.arange(n_knots) - n_first
        rows = 1 + (sizes.cumsum(0) - sizes).unsqueeze(1) + places
        is_there = (places >= 0) & (places < sizes.unsqueeze(1))
        self.register_buffer("rows", rows.where(is_there, 0), persistent=False)
        n_bins = n_knots - (self.encoding != "onehot")
        first = 1 + n_bins * torch.arange(len(sizes))
        self.register_buffer("first", first, persistent=False)

    def forward(
        self, tables: Sequence[Tensor], encoded: Mapping[str, Tensor]
    ) -> Tensor:
        """Return the values of all functions.

        Parameters
        ----------
        tables : sequence of Tensor of shape (sum of code_sizes, dimension)
            For each column.
        encoded : dict of str to Tensor
            What `FeatureColumns.encode` returned.

        Returns
        -------
        Tensor of shape (n_rows, n_elements of all columns, dimension)
        """
        ids = torch.cat([encoded[key] for key in self.keys], dim=1)
        found = _rows(self.bins(tables), ids + self.first)
        if self.encoding == "onehot":
            return found
        start, end = found.chunk(2, dim=-1)
        fractions = torch.cat([encoded[key] for key in self.weight_keys], dim=1)
        return torch.lerp(start, end, fractions.to(found.dtype).unsqueeze(-1))

    def bins(self, tables: Sequence[Tensor]) -> Tensor:
        """Return the values at the two ends of each bin, side by side, for all elements.

        Of a column of encoding "onehot", they are the values in the bins.
        """
        knots = _rows(F.pad(torch.cat(list(tables)), (0, 0, 1, 0)), self.rows)
        if self.encoding == "onehot":
            return knots.flatten(0, 1)
        if self.encoding == "ple":
            knots = knots.cumsum(1)
        return torch.cat([knots[:, :-1], knots[:, 1:]], dim=-1).flatten(0, 1)


def _rows(table: Tensor, ids: Tensor) -> Tensor:
    """Look up rows of a table that gets a dense gradient."""
    # On a GPU this sums gradients always in the same order; without gradients it can be
    # repeated for any number of rows.
    if table.is_cuda or not torch.is_grad_enabled():
        return F.embedding(ids, table)
    # On a CPU, the other one takes a quarter of the time backwards.
    return table.index_select(0, ids.flatten()).unflatten(0, ids.shape)


def grouped(columns: Sequence[PiecewiseLinearColumn]) -> list[Interpolation]:
    """Return what computes columns, those of one encoding and dimension together."""
    groups: dict[tuple[str, int | None], list[PiecewiseLinearColumn]] = {}
    for column in columns:
        groups.setdefault((column.encoding, column.dimension), []).append(column)
    return [Interpolation(group) for group in groups.values()]
