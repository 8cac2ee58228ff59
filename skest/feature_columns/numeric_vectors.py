# SPDX-License-Identifier: Apache-2.0
"""Numbers as vectors that a network learns: piecewise linear, or waves beside them."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn

from skest.core.checks import check_choice, check_integer, check_positive
from skest.feature_columns.base import TrainedColumn
from skest.feature_columns.numeric import NumericColumn, OverNumeric
from skest.feature_columns.statistics import (
    check_boundaries,
    empty_columns,
    known_numbers,
    learned_edges,
    learned_starts,
)
from skest.feature_columns.table import Table

_ENCODINGS = ("ple", "hat", "onehot")


def piecewise_linear_column(
    source_column: NumericColumn,
    boundaries: Sequence[float] | str = "distinct:128",
    dimension: int | None = 8,
    encoding: str = "ple",
) -> "PiecewiseLinearColumn":
    """Let a network see numbers as trees do: by the bin they are in, and where in it.

    A network of scaled numbers is smooth and learns thresholds slowly; here each bin has
    weights of its own. Put the scaled number beside this column (`numeric_column`): it
    goes on beyond the outermost edges, where this column stays as it is at the edge.

    Parameters
    ----------
    source_column : NumericColumn
        Without indicators of missing numbers. Each element of a cell has its own edges.
    boundaries : sequence of float, or str, default="distinct:128"
        The edges, two or more, strictly increasing: numbers, or how to learn them.
        "distinct:N" takes quantiles of the distinct values, and each value if there are
        no more than N; "quantiles:N" takes quantiles of the rows, of which many are equal
        where a number occurs often; "tree:N" takes the thresholds of a decision tree with
        N leaves, which predicts y from this element alone. Weights count as repetitions.
        Bins are merged if they are narrower than 1e-6 of the distance between the
        quartiles, or have fewer than 3 rows; a value with so many rows keeps its edge.
    dimension : int or None, default=8
        Into how many numbers a network turns each element, by a table that it learns and
        that starts at zero, or near it if there are no other columns. None gives it the
        code itself.
    encoding : {"ple", "hat", "onehot"}, default="ple"
        The code of x between edges b and c, at the fraction f = (x - b) / (c - b): "ple"
        has a number for each bin, 1 in those below, f in its own, 0 in those above; "hat"
        has a number for each edge, 1 - f for b, f for c and 0 for others; "onehot" has a
        number for each edge, 1 for b and 0 for others.

    Returns
    -------
    PiecewiseLinearColumn

    Raises
    ------
    ValueError, TypeError
        If a parameter is wrong.

    Notes
    -----
    Piecewise-linear encoding is that of Gorishniy, Rubachev and Babenko (2022), "On
    Embeddings for Numerical Features in Tabular Deep Learning", arXiv:2203.05556, section
    3; there, the first and last bin go on outside of the edges. A table that starts at
    zero beside the scaled number is version "B" of TabM (arXiv:2410.24210). The same
    functions can be learned from all three codes if edges are many, but in other ways:
    "ple" shares what it learns between bins and is safe, "hat" and "onehot" learn bin by
    bin, which is faster and takes more rows.

    A cell is encoded as its bin and fraction, whatever the number of edges. A network
    looks up what the table makes of the two ends of the bin.

    A missing number for which the source has no value gives zeros. `transform` gives the
    code, whatever `dimension` is.

    Examples
    --------
    >>> import numpy as np
    >>> from skest.feature_columns import numeric_column, piecewise_linear_column
    >>> column = piecewise_linear_column(numeric_column("age"), [0, 20, 40, 80])
    >>> column.transform({"age": np.array([5.0, 60.0, np.nan])})
    array([[0.25, 0.  , 0.  ],
           [1.  , 1.  , 0.5 ],
           [0.  , 0.  , 0.  ]], dtype=float32)
    >>> column.get_feature_names_out()
    array(['age_ple_0', 'age_ple_1', 'age_ple_2'], dtype=object)
    """
    return PiecewiseLinearColumn(
        source_column, boundaries, dimension, encoding
    ).validated()


@dataclass(eq=False, repr=False)
class PiecewiseLinearColumn(OverNumeric):
    """Column made by `piecewise_linear_column`, where the parameters are documented.

    Attributes
    ----------
    source_column_ : NumericColumn
        The fitted source.
    edges_ : list of ndarray, of length n_elements
        Edges of each element, given or learned.
    """

    source_column: NumericColumn
    boundaries: Sequence[float] | str = "distinct:128"
    dimension: int | None = 8
    encoding: str = "ple"

    allows_missing = True  # missing numbers give zeros

    @property
    def name(self) -> str:
        """Name of the source, ``_`` and the encoding."""
        return f"{self.source_column.name}_{self.encoding}"

    @property
    def encoded_key(self) -> str:
        """Key of the bins: the name and ``_ids``."""
        return f"{self.name}_ids"

    @property
    def weight_key(self) -> str:
        """Key of the fractions: the name and ``_weights``."""
        return f"{self.name}_weights"

    @property
    def needs_fit(self) -> bool:
        """Whether edges, or something of the source, are to be learned."""
        return isinstance(self.boundaries, str) or super().needs_fit

    @property
    def edges(self) -> list[np.ndarray]:
        """Edges of each element, numbers of the dtype of the source or of float64."""
        if "edges_" not in vars(self) and not isinstance(self.boundaries, str):
            given = np.asarray(self.boundaries).astype(self._float)
            return [given] * self.source_column.n_elements
        return self._learned("edges_", "give 'boundaries' as numbers")

    @property
    def _float(self) -> np.dtype:
        """Type in which fractions are computed."""
        return np.promote_types(self.source_column.dtype, np.float32)

    @property
    def code_sizes(self) -> list[int]:
        """How many numbers the code of each element has."""
        n_ends = 1 if self.encoding == "ple" else 0
        return [len(edges) - n_ends for edges in self.edges]

    @property
    def size(self) -> int:
        """Numbers for all elements: `dimension` for each, or the code."""
        if self.dimension is None:
            return sum(self.code_sizes)
        return self.dimension * self.source_column.n_elements

    def _validate(self) -> None:
        owner = self._validate_source("piecewise-linear")
        check_boundaries(self.boundaries, owner, self.source_column.dtype, least=2)
        if not isinstance(self.boundaries, str):
            with np.errstate(over="ignore"):
                # Different as the user gave them, two edges may be one in float32.
                widths = np.diff(np.asarray(self.boundaries).astype(self._float))
            if not (np.isfinite(widths) & (widths > 0)).all():
                raise ValueError(
                    f"'boundaries' of {owner} must be different numbers, not too far "
                    f"apart, in {self._float}; got {self.boundaries!r}."
                )
        if self.dimension is not None:
            check_integer(self.dimension, "dimension", owner, minimum=1)
        check_choice(self.encoding, "encoding", owner, _ENCODINGS)

    def _learn(self, table: Table) -> dict[str, Any]:
        source = self.source_column.fitted(table, table.weight)
        learned: dict[str, Any] = {"source_column_": source}
        if not isinstance(self.boundaries, str):
            return learned | {"edges_": self.edges}
        values, unknown = source.values(table)
        empty = empty_columns(unknown, table)
        # What has no number at all, and other codes, are refused below.
        if empty is None or empty.all() or self.encoding != "ple":
            empty = np.zeros(source.n_elements, dtype=bool)
        known = np.ones(values.shape, bool) if unknown is None else ~unknown
        edges = []
        for element in range(source.n_elements):
            if empty[element]:
                # Whatever comes later is at the start of the one bin, which gives zeros.
                edges.append(np.array([0, np.inf], self._float))
                continue
            one = slice(element, element + 1)
            numbers = known_numbers(values[:, one], known[:, one], table, source.key)
            learn = learned_starts if self.encoding == "onehot" else learned_edges
            edges.append(learn(self.boundaries, numbers).astype(self._float))
        return learned | {"edges_": edges}

    def _encoded(self, table: Table) -> dict[str, np.ndarray]:
        values, unknown = self.source.values(table)
        values = values.astype(self._float, copy=False)
        # Twelve bytes for an element, whatever the number of edges; a code of 128
        # floats has 512.
        ids = np.empty(values.shape, dtype=np.int64)
        fractions = np.zeros_like(values)
        last = None if self.encoding == "onehot" else -1
        with np.errstate(over="ignore"):  # outside of the edges
            for element, edges in enumerate(self.edges):
                x = values[:, element]
                # Without the outermost edges: their bins go on, with a fraction that is
                # clipped.
                ids[:, element] = bins = edges[1:last].searchsorted(x, side="right")
                if self.encoding != "onehot":
                    starts = edges[bins]
                    fractions[:, element] = (x - starts) / (edges[bins + 1] - starts)
        # Of all at once: for a row, a call takes longer than what it does.
        np.clip(fractions, 0, 1, out=fractions)
        if unknown is not None:
            # Zeros for a missing number: the numeric column beside may indicate it.
            ids[unknown] = -1
            fractions[unknown] = 0
        return {self.encoded_key: ids, self.weight_key: fractions}

    def _matrix(self, table: Table) -> np.ndarray:
        encoded = {k: torch.from_numpy(v) for k, v in self._encoded(table).items()}
        return CodeOutput.of(self)(encoded, torch.float64).numpy().astype(self._float)

    def _output_names(self) -> list[str]:
        return [
            f"{name}_{self.encoding}_{i}"
            for name, size in zip(
                self.source._element_names, self.code_sizes, strict=True
            )
            for i in range(size)
        ]


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
            # Gorishniy et al. (2022): 1 below the bin of x, and in it the fraction.
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
    >>> from skest.feature_columns.numeric_vectors import Interpolation
    >>> column = piecewise_linear_column(numeric_column("age"), [0, 20, 40])
    >>> encoded = FeatureColumns([column]).encode({"age": [10, 30, 99]})
    >>> Interpolation([column])([torch.tensor([[4.0], [8.0]])], encoded)
    tensor([[[ 2.]],
    <BLANKLINE>
            [[ 8.]],
    <BLANKLINE>
            [[12.]]])
    """

    places: Tensor
    first: Tensor

    def __init__(self, columns: Sequence[PiecewiseLinearColumn]) -> None:
        super().__init__()
        self.columns = [column.name for column in columns]
        self.keys = [column.encoded_key for column in columns]
        self.weight_keys = [column.weight_key for column in columns]
        self.n_elements = [len(column.code_sizes) for column in columns]
        # One gather and one cumulative sum for the elements of all columns: twenty of
        # each, of small tables, would take longer than the layers behind them.
        self.encoding = columns[0].encoding
        sizes = torch.tensor([size for column in columns for size in column.code_sizes])
        # Every element gets as many knots. The first one stands for missing numbers, and
        # is zero; so is what fills up to the longest, and is looked up by nobody.
        self.n_knots = 1 + int(sizes.max())
        places = torch.arange(len(sizes) * self.n_knots).view(len(sizes), self.n_knots)
        is_there = torch.arange(self.n_knots) - 1 < sizes.unsqueeze(1)
        is_there[:, 0] = False
        self.register_buffer("places", places[is_there], persistent=False)
        n_bins = self.n_knots - (self.encoding == "hat")
        # One more than there are bins before: the id of a missing number is -1.
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
        end, rise = found.chunk(2, dim=-1)
        fractions = torch.cat([encoded[key] for key in self.weight_keys], dim=1)
        return end + rise * (fractions - 1).to(found.dtype).unsqueeze(-1)

    def bins(self, tables: Sequence[Tensor]) -> Tensor:
        """Return the values at the end of each bin beside the rises within it.

        Of a column of encoding "onehot", return the values in the bins.
        """
        # Into their places, and not from them: backwards, that is a look-up, too.
        zeros = tables[0].new_zeros(len(self.first) * self.n_knots, tables[0].shape[1])
        knots = zeros.index_copy(0, self.places, torch.cat(list(tables)))
        knots = knots.unflatten(0, (-1, self.n_knots))
        if self.encoding == "onehot":
            return knots.flatten(0, 1)
        if self.encoding == "ple":
            ends, rises = knots.cumsum(1), knots
        else:
            ends, rises = knots[:, 1:], knots.diff(dim=1)
        # One look-up for both: backwards, it takes a quarter of the time of two.
        return torch.cat([ends, rises], dim=-1).flatten(0, 1)


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


#: Names of what a network trains.
PARAMETERS = ("frequencies", "phases", "weights", "bias")


def periodic_column(
    source_column: NumericColumn,
    dimension: int = 4,
    n_frequencies: int = 16,
    scale: float = 0.1,
) -> "PeriodicColumn":
    """Give a network waves of a number, of frequencies that it learns, beside the number.

    A network of scaled numbers learns slowly what goes up and down often; here it has
    cosines to put together. Use this column in place of the numeric column.

    Parameters
    ----------
    source_column : NumericColumn
        Without indicators of missing numbers. Its numbers should be scaled, best by
        ``normalizer="robust"``.
    dimension : int, default=4
        Into how many numbers a network turns each element of a cell, 2 or more: itself,
        and linear functions of the waves.
    n_frequencies : int, default=16
        How many waves each element has.
    scale : float, default=0.1
        Standard deviation of the frequencies at the start: the greater, the more often a
        function may go up and down.

    Returns
    -------
    PeriodicColumn

    Raises
    ------
    ValueError, TypeError
        If a parameter is wrong.

    Notes
    -----
    This is the embedding "PBLD" of RealMLP (Holzmüller, Grinsztajn and Steinwart 2024,
    "Better by Default", arXiv:2407.04491). Of an element x it makes x and
    ``bias + cos(2 * pi * x * frequencies + phases) @ weights``, of shape
    (dimension - 1,), where `frequencies` and `phases` have the shape (n_frequencies,).
    At the start, frequencies are normal with standard deviation `scale`, phases uniform
    between -pi and pi, weights and bias between ``-n_frequencies**-0.5`` and
    ``n_frequencies**-0.5``. Each element has its own; a network trains them all, at the
    learning rate of its layers (RealMLP takes a tenth for them).

    `transform` gives what a fitted estimator has learned. Linear models refuse the
    column: a linear function of waves is none of the number.

    Examples
    --------
    >>> import torch
    >>> from skest.feature_columns import DenseFeatures, FeatureColumns
    >>> from skest.feature_columns import numeric_column, periodic_column
    >>> columns = FeatureColumns([periodic_column(numeric_column("size", shape=2))])
    >>> dense = DenseFeatures(columns)
    >>> {name: tuple(p.shape) for name, p in dense.named_parameters()}
    {'size_periodic.frequencies': (2, 16), 'size_periodic.phases': (2, 16),
     'size_periodic.weights': (2, 16, 3), 'size_periodic.bias': (2, 3)}
    >>> dense(columns.encode({"size": [[0.5, -0.5]]}))[:, [0, 4]].tolist()
    [[0.5, -0.5]]
    """
    return PeriodicColumn(source_column, dimension, n_frequencies, scale).validated()


@dataclass(eq=False, repr=False)
class PeriodicColumn(OverNumeric, TrainedColumn):
    """Column made by `periodic_column`, where the parameters are documented.

    Attributes
    ----------
    source_column_ : NumericColumn
        The fitted source.
    weights_ : dict of str to ndarray
        The learned parameters of `PeriodicNumbers`. The estimator sets them on its
        fitted copy of the column; `transform` needs them, and `fit` refuses to lose them.
    """

    source_column: NumericColumn
    dimension: int = 4
    n_frequencies: int = 16
    scale: float = 0.1

    @property
    def name(self) -> str:
        """Name of the source and ``_periodic``."""
        return f"{self.source_column.name}_periodic"

    @property
    def encoded_key(self) -> str:
        """Key of the numbers of the source: the name and ``_numbers``."""
        return f"{self.name}_numbers"

    @property
    def size(self) -> int:
        """Numbers for all elements, `dimension` for each."""
        return self.dimension * self.source_column.n_elements

    def _validate(self) -> None:
        owner = self._validate_source("periodic")
        check_integer(self.dimension, "dimension", owner, minimum=2)
        check_integer(self.n_frequencies, "n_frequencies", owner, minimum=1)
        check_positive(self.scale, "scale", owner)

    def _encoded(self, table: Table) -> dict[str, np.ndarray]:
        # Under a key of its own: the numbers may be encoded otherwise by a column
        # beside.
        numbers = self.source._encoded(table)[self.source.encoded_key]
        return {self.encoded_key: numbers}

    def _matrix(self, table: Table) -> np.ndarray:
        learned = {name: torch.tensor(v) for name, v in self._trained_weights.items()}
        dtype = learned["bias"].dtype
        network = PeriodicNumbers(self, dtype, initialize=False)
        network.load_state_dict(learned)
        numbers = torch.from_numpy(self._encoded(table)[self.encoded_key]).to(dtype)
        with torch.no_grad():
            return network(numbers).numpy()

    def _output_names(self) -> list[str]:
        return [
            f"{name}_periodic_{i}"
            for name in self.source._element_names
            for i in range(self.dimension)
        ]


class PeriodicNumbers(nn.Module):
    """Numbers and waves of them, as `periodic_column` says.

    Parameters
    ----------
    column : PeriodicColumn
        Which numbers.
    dtype : torch.dtype, default=torch.float32
        Type of the parameters and of the output.
    generator : torch.Generator, default=None
        Source of the initial parameters, on the CPU.
    initialize : bool, default=True
        Without, the parameters are left as memory was, for a checkpoint to fill.
    """

    def __init__(
        self,
        column: PeriodicColumn,
        dtype: torch.dtype = torch.float32,
        generator: Generator | None = None,
        initialize: bool = True,
    ) -> None:
        super().__init__()
        waves = (column.source_column.n_elements, column.n_frequencies)
        n_out = column.dimension - 1
        self.frequencies = nn.Parameter(torch.empty(waves, dtype=dtype))
        self.phases = nn.Parameter(torch.empty(waves, dtype=dtype))
        self.weights = nn.Parameter(torch.empty(*waves, n_out, dtype=dtype))
        self.bias = nn.Parameter(torch.empty(waves[0], n_out, dtype=dtype))
        if initialize:
            # As nn.Linear with so many inputs.
            bound = column.n_frequencies**-0.5
            nn.init.normal_(self.frequencies, std=column.scale, generator=generator)
            nn.init.uniform_(self.phases, -math.pi, math.pi, generator=generator)
            nn.init.uniform_(self.weights, -bound, bound, generator=generator)
            nn.init.uniform_(self.bias, -bound, bound, generator=generator)

    def forward(self, numbers: Tensor) -> Tensor:
        """Return numbers of shape (n_rows, size) for some of shape (n_rows, n_elements)."""
        return _with_waves(numbers, *self.parameters()).flatten(1)


def computed_together(
    networks: Sequence[PeriodicNumbers], numbers: Sequence[Tensor]
) -> list[Tensor]:
    """Return what each network makes of its numbers; all have as many waves and outputs.

    Many columns of one number each take many small operations, this takes few.
    """
    if len(networks) == 1:
        return [networks[0](numbers[0])]
    # Of 20 columns, a step with 256 rows takes 1.7 ms so in place of 3.0.
    parameters = zip(*(network.parameters() for network in networks), strict=True)
    joined = [torch.cat(several) for several in parameters]
    found = _with_waves(torch.cat(list(numbers), dim=1), *joined)
    parts = found.split([own.shape[1] for own in numbers], dim=1)
    return [part.flatten(1) for part in parts]


def _with_waves(
    numbers: Tensor, frequencies: Tensor, phases: Tensor, weights: Tensor, bias: Tensor
) -> Tensor:
    """Return numbers beside waves of them, of shape (n_rows, n_elements, dimension)."""
    x = numbers.T.unsqueeze(-1)
    speeds = (2 * math.pi * frequencies).unsqueeze(1)
    waves = torch.addcmul(phases.unsqueeze(1), x, speeds).cos()
    # Elements come first here: each has matrices of its own, and they are multiplied in
    # one call.
    found = torch.baddbmm(bias.unsqueeze(1), waves, weights)
    return torch.cat([x, found], dim=-1).transpose(0, 1)
