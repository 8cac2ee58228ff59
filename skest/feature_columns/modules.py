# SPDX-License-Identifier: Apache-2.0
"""The device side of feature columns: modules that hold the trainable tables."""

import functools
import zlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Self

import torch
from torch import Generator, Tensor, nn

from skest.core.checks import check_choice, check_integer
from skest.feature_columns.base import (
    CategoricalColumn,
    DenseColumn,
    FeatureColumn,
    OverCategorical,
)
from skest.feature_columns.columns import FeatureColumns, as_feature_columns
from skest.feature_columns.dense import EmbeddingColumn
from skest.feature_columns.joined import JoinedCategoricalColumn
from skest.feature_columns.lookup import (
    COMBINERS,
    Lookup,
    looked_up,
    looked_up_often,
    own_values,
    row_table,
)
from skest.feature_columns.numeric import NumericColumn
from skest.feature_columns.numeric_vectors import (
    CodeOutput,
    PeriodicColumn,
    PeriodicNumbers,
    PiecewiseLinearColumn,
    computed_together,
    grouped,
)


def module_name(column_name: str) -> str:
    """Return the name of a column's module in the state of another one.

    Names of modules have no ".", so it is written "%2E", and "%" is written "%25".
    """
    return column_name.replace("%", "%25").replace(".", "%2E")


def parameter_name(column_name: str) -> str:
    """Return the name of a column's parameter in the state of a module.

    It is written as `module_name` does.

    Examples
    --------
    >>> parameter_name("v1.0")
    'v1%2E0_weights'
    """
    return f"{module_name(column_name)}_weights"


class ValuesOutput(NamedTuple):
    """Output of a column whose encoded numbers are its output."""

    column: str
    key: str

    def __call__(self, encoded: Mapping[str, Tensor], dtype: torch.dtype) -> Tensor:
        """Return the output of the column, of shape (n_rows, size)."""
        return encoded[self.key].to(dtype)


class CountsOutput(NamedTuple):
    """Output of a column that counts its ids, or sums their weights."""

    column: str
    key: str
    size: int
    weight_key: str | None

    def __call__(self, encoded: Mapping[str, Tensor], dtype: torch.dtype) -> Tensor:
        """Return the output of the column, of shape (n_rows, size)."""
        ids = encoded[self.key]
        shape = (ids.shape[0], self.size + 1)  # the last column takes the ids of -1
        counts = torch.zeros(shape, dtype=dtype, device=ids.device)
        if self.weight_key is None:
            added = torch.ones_like(ids, dtype=dtype)
        else:
            added = encoded[self.weight_key].to(dtype)
        # -1 % (n + 1) is n: no mask, and so no shape that depends on the ids.
        places = ids.remainder(self.size + 1)
        return counts.scatter_add(1, places, added)[:, : self.size]


class EmbeddingOutput(NamedTuple):
    """Output of an embedding column."""

    column: str
    key: str
    table: str
    combiner: str
    max_norm: float | None
    weight_key: str | None

    def lookup(self, encoded: Mapping[str, Tensor], table: Tensor) -> Lookup:
        """Return what is looked up; the output has the shape (n_rows, size)."""
        factors = encoded[self.weight_key] if self.weight_key else None
        ids = encoded[self.key]
        return Lookup(table, ids, self.combiner, self.max_norm, factors)


class InterpolatedOutput(NamedTuple):
    """Output of a piecewise-linear column with a table."""

    column: str
    key: str


class PeriodicOutput(NamedTuple):
    """Output of a periodic column, of which the module `module_name` has the waves."""

    column: str
    key: str
    n_frequencies: int
    dimension: int


# One by which `forward` computes, and an export writes the same in ONNX: no column is
# asked any more, and a pickle of the network holds none.
_Output = (
    ValuesOutput
    | CountsOutput
    | EmbeddingOutput
    | CodeOutput
    | InterpolatedOutput
    | PeriodicOutput
)


# A table, the key of its ids among the encoded features, and whether an id may be left out
# because of its weight.
_RowLookup = tuple[nn.Parameter, str, bool]


class _ColumnFeatures(nn.Module):
    """The tables of dense columns, and their outputs side by side."""

    def __init__(
        self,
        columns: FeatureColumns | Sequence[FeatureColumn],
        dtype: torch.dtype = torch.float32,
        generator: Generator | None = None,
        initialize: bool = True,
    ) -> None:
        super().__init__()
        self.dtype = dtype
        self.outputs: list[_Output] = []
        self._lookups: Counter[str] = Counter()  # by name of the table
        self.out_features = 0
        interpolated: list[PiecewiseLinearColumn] = []
        self.feature_sizes: list[int] = []
        # In tf.keras.layers.DenseFeatures the names decide, so a checkpoint fits any
        # order of the list.
        for column in _sorted_by_name(columns):
            if not isinstance(column, DenseColumn):
                raise ValueError(
                    f"Column {column.name!r} is categorical and has no dense output. "
                    "Wrap it in indicator_column or embedding_column."
                )
            self._check(column)
            self.outputs.append(_output_of(column))
            self.out_features += column.size
            self.feature_sizes += _feature_sizes(column)
            if isinstance(column, EmbeddingColumn):
                self._register_table(column, generator, initialize)
                self._lookups[column.table_name] += 1
            elif isinstance(column, PiecewiseLinearColumn) and column.dimension:
                interpolated.append(column)
                shape = (sum(column.code_sizes), column.dimension)
                zeros = nn.Parameter(torch.zeros(shape, dtype=dtype))
                self.register_parameter(parameter_name(column.name), zeros)
            elif isinstance(column, PeriodicColumn):
                own = generator or _generator_for(column.name)
                made = PeriodicNumbers(column, dtype, own, initialize)
                self.add_module(module_name(column.name), made)
        self.interpolations: Any = nn.ModuleList(grouped(interpolated))
        if initialize and len(interpolated) == len(self.outputs):
            # Of nothing but zeros, rectified units without a bias learn nothing.
            for column in interpolated:
                table = self.get_parameter(parameter_name(column.name))
                own = generator or _generator_for(column.name)
                nn.init.normal_(table, std=0.1, generator=own)

    def _register_table(
        self, column: EmbeddingColumn, generator: Generator | None, initialize: bool
    ) -> None:
        """Register the table of a column, unless a column before shares it."""
        name = parameter_name(column.table_name)
        if name in self._parameters:
            return
        shape = (column.categorical.num_buckets, column.size)
        weights = torch.empty(shape, dtype=self.dtype)
        if initialize:
            own = generator or _generator_for(column.table_name)
            make = functools.partial(column.initial_weights, own, self.dtype)
            # A generator that others share goes on by as much as is drawn: where rows
            # are elsewhere, too, they are drawn here.
            weights = make() if own is generator else own_values(weights, make)
        self.register_parameter(name, row_table(weights, trainable=column.trainable))

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        super()._apply(fn, recurse)
        self.dtype = fn(torch.empty(0, dtype=self.dtype)).dtype  # of `double` and `to`
        return self

    def _check(self, column: DenseColumn) -> None:
        """Raise ValueError if the module does not take this column."""
        raise NotImplementedError

    def _embedded(self, encoded: Mapping[str, Tensor]) -> list[Tensor]:
        # A shared table has a view for each look-up, and gradients that are joined
        # once.
        tables = {
            name: iter(looked_up_often(self.get_parameter(parameter_name(name)), n))
            for name, n in self._lookups.items()
        }
        return looked_up(
            [
                output.lookup(encoded, next(tables[output.table]))
                for output in self.outputs
                if isinstance(output, EmbeddingOutput)
            ]
        )

    def _interpolated(self, encoded: Mapping[str, Tensor]) -> dict[str, Tensor]:
        found: dict[str, Tensor] = {}
        for group in self.interpolations:
            tables = [self.get_parameter(parameter_name(n)) for n in group.columns]
            # The elements of all columns come from one look-up; here each column gets
            # its own back.
            parts = group(tables, encoded).split(group.n_elements, dim=1)
            found |= zip(group.columns, (p.flatten(1) for p in parts), strict=True)
        return found

    def _periodic(self, encoded: Mapping[str, Tensor]) -> dict[str, Tensor]:
        # Columns of equal shapes are computed as one: few large operations for many
        # small ones.
        groups: dict[tuple[int, int], list[PeriodicOutput]] = {}
        for o in self.outputs:
            if isinstance(o, PeriodicOutput):
                groups.setdefault((o.n_frequencies, o.dimension), []).append(o)
        found: dict[str, Tensor] = {}
        for group in groups.values():
            names = [output.column for output in group]
            networks: Any = [self.get_submodule(module_name(name)) for name in names]
            numbers = [encoded[output.key].to(self.dtype) for output in group]
            found |= zip(names, computed_together(networks, numbers), strict=True)
        return found

    def _concatenated(self, encoded: Mapping[str, Tensor]) -> Tensor:
        # In the order of the outputs, by which they are taken below.
        vectors = iter(self._embedded(encoded) if self._lookups else ())
        computed = self._interpolated(encoded) | self._periodic(encoded)
        outputs = [
            next(vectors)
            if isinstance(output, EmbeddingOutput)
            else computed[output.column]
            if isinstance(output, InterpolatedOutput | PeriodicOutput)
            else output(encoded, self.dtype)
            for output in self.outputs
        ]
        return torch.cat(outputs, dim=1) if len(outputs) > 1 else outputs[0]

    def row_lookups(self) -> list[_RowLookup]:
        """Return the look-ups of rows that `forward` makes."""
        # Parameter servers bring these rows before a step.
        tables = self.column_parameters()
        return [
            (tables[o.column], o.key, o.weight_key is not None)
            for o in self.outputs
            if isinstance(o, EmbeddingOutput)
        ]

    def column_parameters(self) -> dict[str, nn.Parameter]:
        """Return the tables of the embedding columns by column name.

        Columns with a shared embedding have the same table.
        """
        return {
            output.column: self.get_parameter(parameter_name(output.table))
            for output in self.outputs
            if isinstance(output, EmbeddingOutput)
        }


def _feature_sizes(column: DenseColumn) -> list[int]:
    if isinstance(column, NumericColumn):
        # Members of a network scale each number by itself, and a vector as one (TabM).
        return [1] * column.size
    if isinstance(column, PeriodicColumn):
        return [column.dimension] * column.source_column.n_elements
    if isinstance(column, PiecewiseLinearColumn):
        n_elements = len(column.code_sizes)
        return (
            [column.size // n_elements] * n_elements
            if column.dimension
            else list(column.code_sizes)
        )
    several = getattr(column, "categorical", None)
    if isinstance(several, JoinedCategoricalColumn):
        return several.level_counts
    return [column.size]


class DenseFeatures(_ColumnFeatures):
    """Encoded columns as one vector for each row.

    Parameters
    ----------
    columns : FeatureColumns, or sequence of FeatureColumn
        Dense columns only. What they learn from data must be learned already.
    dtype : torch.dtype, default=torch.float32
        Type of the tables and of the output.
    generator : torch.Generator, default=None
        Source of the initial tables, on the CPU. None takes a new one for each table,
        with a seed from ``torch.initial_seed()`` and the name of the table: nothing is
        drawn from torch's global generator.
    initialize : bool, default=True
        Without, the tables are left as memory was, for a checkpoint to fill.

    Attributes
    ----------
    out_features : int
        Width of the output.
    feature_sizes : list of int
        Widths of its parts that belong together: single numbers, whole vectors.

    Raises
    ------
    ValueError
        If a column is categorical or a sequence.

    Notes
    -----
    As in ``tf.keras.layers.DenseFeatures``, outputs of the columns are concatenated in
    alphabetical order of their names.

    Examples
    --------
    >>> import numpy as np
    >>> from skest.feature_columns import DenseFeatures, FeatureColumns, numeric_column
    >>> columns = FeatureColumns([numeric_column("b"), numeric_column("a")])
    >>> X = {"a": np.array([1.0]), "b": np.array([2.0])}
    >>> DenseFeatures(columns)(columns.encode(X))
    tensor([[1., 2.]])
    """

    def _check(self, column: DenseColumn) -> None:
        _refuse_sequence(column, "DenseFeatures")

    def forward(self, encoded: Mapping[str, Tensor]) -> Tensor:
        """Return the outputs of all columns side by side.

        Parameters
        ----------
        encoded : dict of str to Tensor
            What `FeatureColumns.encode` returned.

        Returns
        -------
        Tensor of shape (n_rows, out_features)
        """
        return self._concatenated(encoded)


class SequenceFeatures(_ColumnFeatures):
    """Encoded sequence columns as one vector for each step.

    Parameters
    ----------
    columns : FeatureColumns, or sequence of FeatureColumn
        Sequence columns only: those of numbers, and those of categories in an indicator
        or embedding column. What they learn from data must be learned already.
    dtype, generator, initialize
        See `DenseFeatures`.

    Attributes
    ----------
    out_features : int
        Width of the output.

    Raises
    ------
    ValueError
        If a column is categorical, or no sequence.

    Notes
    -----
    As ``tf.keras.experimental.SequenceFeatures``, with outputs in alphabetical order of
    the names of the columns. Steps that no sequence of a batch has are cut off, so that
    one long sequence does not make all batches of a table slow.

    Examples
    --------
    >>> from skest.feature_columns import (
    ...     FeatureColumns,
    ...     SequenceFeatures,
    ...     sequence_numeric_column,
    ... )
    >>> columns = FeatureColumns([sequence_numeric_column("dose")])
    >>> steps, lengths = SequenceFeatures(columns)(columns.encode({"dose": [[1, 2], [3]]}))
    >>> steps.shape, lengths
    (torch.Size([2, 2, 1]), tensor([2, 1]))
    """

    def _check(self, column: DenseColumn) -> None:
        if column.length_key is None:
            raise ValueError(
                f"Column {column.name!r} is no sequence, which SequenceFeatures requires. "
                "Use a column made by a function whose name begins with 'sequence_', or "
                "make it a context column."
            )
        # That of any will do: all have the same lengths, which `encode` has checked.
        self.length_key = column.length_key

    def forward(self, encoded: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Return the outputs of all columns side by side, and the lengths.

        Parameters
        ----------
        encoded : dict of str to Tensor
            What `FeatureColumns.encode` returned.

        Returns
        -------
        steps : Tensor of shape (n_rows, n_steps, out_features)
            `n_steps` is the length of the longest sequence, and at least 1.
        lengths : Tensor of int64, shape (n_rows,)
        """
        encoded = self.cut_to_longest(encoded)
        lengths = encoded[self.length_key]
        n_rows, n_steps = encoded[self.outputs[0].key].shape[:2]
        # Every step is a row for the columns.
        steps = {
            output.key: encoded[output.key].reshape(n_rows * n_steps, -1)
            for output in self.outputs
        }
        return self._concatenated(steps).reshape(n_rows, n_steps, -1), lengths

    def cut_to_longest(self, encoded: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Cut off the steps that no sequence has, which is done before anything else.

        How many there are depends on the lengths, and so does the shape of all that
        comes later. `skest.engine.recorded.step.GraphStep` calls this before the part of a
        step that it records. Nothing is cut in a program of ``torch.export``, whose
        shapes depend on no values.

        Parameters
        ----------
        encoded : dict of str to Tensor
            As for `forward`.

        Returns
        -------
        dict of str to Tensor
            The same for `forward`, with what the columns need; it is not cut again.
        """
        if isinstance(encoded, _Cut):
            return encoded
        # A length that depends on the values cannot be traced.
        if torch.compiler.is_exporting():
            return dict(encoded)
        lengths = encoded[self.length_key]
        n_steps = max(1, int(lengths.max()))
        steps = {o.key: encoded[o.key][:, :n_steps] for o in self.outputs}
        # Marked, for to look at the lengths again would wait for the device.
        return _Cut(steps, **{self.length_key: lengths})


class _Cut(dict[str, Tensor]):
    """Encoded sequences that are no longer than the longest of them."""


class LinearFeatures(nn.Module):
    """A linear function of encoded columns.

    Categorical columns, and bucketized ones, have a weight for each id, which is looked
    up; dense columns have a weight for each element of their output. All weights start
    at zero.

    Parameters
    ----------
    columns : FeatureColumns, or sequence of FeatureColumn
        Dense and categorical columns. What they learn from data must be learned already.
    units : int, default=1
        Width of the output.
    sparse_combiner : {"sum", "mean", "sqrtn"}, default="sum"
        How the weights of a cell with several ids are combined; an indicator column,
        which has a dense output, and a sparse matrix of numbers are not affected.
    dtype : torch.dtype, default=torch.float32
        Type of the weights and of the output.
    generator : torch.Generator, default=None
        Source of the initial tables of embedding columns, see `DenseFeatures`.
    initialize : bool, default=True
        See `DenseFeatures`.

    Attributes
    ----------
    bias : Parameter of shape (units,)
        The bias.
    dense : DenseFeatures or None
        Outputs of the dense columns.

    Raises
    ------
    ValueError, TypeError
        If `units` or `sparse_combiner` is wrong, or there are no columns.

    Notes
    -----
    The semantics are those of ``linear_model`` of ``tf.feature_column``.

    Examples
    --------
    >>> import numpy as np
    >>> from skest.feature_columns import (
    ...     FeatureColumns,
    ...     LinearFeatures,
    ...     categorical_column_with_identity,
    ... )
    >>> columns = FeatureColumns([categorical_column_with_identity("c", 3)])
    >>> linear = LinearFeatures(columns, units=2)
    >>> {name: tuple(p.shape) for name, p in linear.named_parameters()}
    {'bias': (2,), 'c_weights': (3, 2)}
    """

    def __init__(
        self,
        columns: FeatureColumns | Sequence[FeatureColumn],
        units: int = 1,
        sparse_combiner: str = "sum",
        dtype: torch.dtype = torch.float32,
        generator: Generator | None = None,
        initialize: bool = True,
    ) -> None:
        super().__init__()
        check_integer(units, "units", "LinearFeatures", minimum=1)
        check_choice(sparse_combiner, "sparse_combiner", "LinearFeatures", COMBINERS)
        self.sparse_combiner = sparse_combiner
        self.bias = nn.Parameter(torch.zeros(units, dtype=dtype))
        self.looked_up: list[tuple[str, str, str | None, str]] = []
        dense: list[FeatureColumn] = []
        interpolated: list[PiecewiseLinearColumn] = []
        for column in _sorted_by_name(columns):
            _refuse_sequence(column, "LinearFeatures")
            if isinstance(column, PeriodicColumn):
                raise ValueError(
                    f"Column {column.name!r} is trained in a network, which "
                    "LinearFeatures cannot take. Use it for a deep model such as "
                    "DNNClassifier, or take a bucketized_column or "
                    "piecewise_linear_column, which linear models learn."
                )
            if isinstance(column, CategoricalColumn):
                empty = torch.empty(column.num_buckets, units, dtype=dtype)
                # Linear weights begin at zero, as in tf.feature_column.linear_model.
                make = functools.partial(torch.zeros_like, empty)
                weights = row_table(own_values(empty, make))
                # Numbers of a sparse matrix have no mean over a row: theirs is X @
                # weights.
                combiner = "sum" if column.is_summed else sparse_combiner
                keys = (column.encoded_key, column.weight_key)
                self.looked_up.append((column.name, *keys, combiner))
            elif isinstance(column, PiecewiseLinearColumn):
                zeros = torch.zeros(sum(column.code_sizes), units, dtype=dtype)
                weights = nn.Parameter(zeros)
                interpolated.append(column)
            elif isinstance(column, DenseColumn):
                weights = nn.Parameter(torch.zeros(column.size, units, dtype=dtype))
                dense.append(column)
            self.register_parameter(parameter_name(column.name), weights)
        self.multiplied = [column.name for column in dense]
        self.interpolations: Any = nn.ModuleList(grouped(interpolated))
        # Dense columns may have tables of their own: also in a linear model, an
        # embedding is one.
        self.dense = (
            DenseFeatures(dense, dtype, generator, initialize) if dense else None
        )

    def forward(self, encoded: Mapping[str, Tensor]) -> Tensor:
        """Return the sum of bias, looked-up weights and weighted dense outputs.

        Parameters
        ----------
        encoded : dict of str to Tensor
            What `FeatureColumns.encode` returned.

        Returns
        -------
        Tensor of shape (n_rows, units)
        """
        logits: Tensor = self.bias
        lookups = [
            Lookup(
                self._parameter(name),
                encoded[key],
                combiner,
                factors=encoded[weight_key] if weight_key else None,
            )
            for name, key, weight_key, combiner in self.looked_up
        ]
        # In the order of the names, always: sums of floats depend on it.
        for weights in looked_up(lookups):
            logits = logits + weights
        for group in self.interpolations:
            tables = [self._parameter(name) for name in group.columns]
            logits = logits + group(tables, encoded).sum(1)
        if self.dense is not None:
            # One product of matrices for all dense columns.
            stacked = torch.cat([self._parameter(name) for name in self.multiplied])
            logits = logits + self.dense(encoded) @ stacked
        return logits

    def row_lookups(self) -> list[_RowLookup]:
        """Return the look-ups of rows that `forward` makes itself."""
        return [
            (self._parameter(name), key, weight_key is not None)
            for name, key, weight_key, _ in self.looked_up
        ]

    def column_parameters(self) -> dict[str, nn.Parameter]:
        """Return the weights of shape (num_buckets or size, units) by column name."""
        names = [name for name, *_ in self.looked_up] + self.multiplied
        names += [name for group in self.interpolations for name in group.columns]
        return {name: self._parameter(name) for name in sorted(names)}

    def _parameter(self, column_name: str) -> nn.Parameter:
        return self.get_parameter(parameter_name(column_name))


def _sorted_by_name(
    columns: FeatureColumns | Sequence[FeatureColumn],
) -> list[FeatureColumn]:
    """Columns in TensorFlow's order."""
    return sorted(as_feature_columns(columns).active, key=lambda column: column.name)


def _refuse_sequence(column: FeatureColumn, module: str) -> None:
    if column.length_key is not None:
        raise ValueError(
            f"Column {column.name!r} is a sequence, which {module} cannot take. Use it "
            "with SequenceFeatures and a network of sequences such as RNNClassifier, or "
            "take a column without 'sequence', which has one output for all values."
        )


def _output_of(column: DenseColumn) -> _Output:
    if isinstance(column, PiecewiseLinearColumn):
        if column.dimension is None:
            return CodeOutput.of(column)
        return InterpolatedOutput(column.name, column.encoded_key)
    if isinstance(column, PeriodicColumn):
        shape = (column.n_frequencies, column.dimension)
        return PeriodicOutput(column.name, column.encoded_key, *shape)
    if isinstance(column, EmbeddingColumn):
        return EmbeddingOutput(
            column.name,
            column.encoded_key,
            column.table_name,
            column.combiner,
            column.max_norm,
            column.weight_key,
        )
    if isinstance(column, OverCategorical | CategoricalColumn):  # ids, and no table
        keys = (column.encoded_key, column.size, column.weight_key)
        return CountsOutput(column.name, *keys)
    return ValuesOutput(column.name, column.encoded_key)


def _generator_for(table_name: str) -> Generator:
    # By its name, so that no other column, and no order, changes how a table begins.
    seed = torch.initial_seed() ^ zlib.crc32(table_name.encode())
    return Generator().manual_seed(seed)
