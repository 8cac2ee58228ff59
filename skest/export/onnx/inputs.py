# SPDX-License-Identifier: Apache-2.0
"""The inputs of an exported graph: one for each raw column that feature columns read."""

from collections.abc import Iterable, Mapping, Sequence
from functools import singledispatch
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from skest.exceptions import ExportError
from skest.export.artifact import MICROSECONDS
from skest.export.onnx.graph import STRING, Graph, Value, where
from skest.feature_columns import sequence
from skest.feature_columns.base import FeatureColumn, OverCategorical
from skest.feature_columns.bucketized import BucketizedColumn
from skest.feature_columns.categorical import IdentityColumn, KeyedCategoricalColumn
from skest.feature_columns.crossed import CrossedColumn, WeightedCategoricalColumn
from skest.feature_columns.joined import (
    JoinedCategoricalColumn,
    JoinedNumericColumn,
)
from skest.feature_columns.matrix_parts import (
    NumberedVocabularyPartColumn,
    NumericFrameColumn,
    NumericPartColumn,
    OneHotColumn,
)
from skest.feature_columns.numeric import NumericColumn
from skest.feature_columns.numeric_vectors import PeriodicColumn, PiecewiseLinearColumn
from skest.feature_columns.parsed import ParsedColumn
from skest.feature_columns.sources import Form
from skest.feature_columns.sparse_matrix import SparseMatrixColumn
from skest.feature_columns.table import Key
from skest.feature_columns.target_statistics import CrossFittedColumn
from skest.feature_columns.vocabulary import NumberedVocabularyColumn, VocabularyColumn


class Demand(NamedTuple):
    """How a column reads a raw column.

    Attributes
    ----------
    key : str or int
        Key of the raw column.
    is_number : bool
        As numbers, or as categories.
    dtype : str or None
        Type of the numbers, None that of the network, `DATE` of dates; or "string" or
        "int64" of the categories, None either.
    shape : tuple of int or None
        Of the input; None is open.
    may_miss : bool
        Whether a number may be missing.
    delimiter : str or None
        What divides the values in a cell.
    is_crossed : bool
        Whether the integer -1 is a category, because a crossed column reads it by name.
    names : tuple of str or None
        Columns of a frame that are the columns of the input.
    is_parsed : bool
        Whether the numbers may be written as strings.
    are_booleans : bool
        Whether the categories are True and False.
    takes_fractions : bool
        Whether a number that is not whole is a category like any other that is unknown.
    weighs : str or None
        Name of the input whose values the numbers are weights of.
    """

    key: Key
    is_number: bool
    dtype: str | None
    shape: tuple[int | None, ...] = (None, 1)
    may_miss: bool = True
    delimiter: str | None = None
    is_crossed: bool = False
    names: tuple[str, ...] | None = None
    is_parsed: bool = False
    are_booleans: bool = False
    takes_fractions: bool = False
    weighs: str | None = None


def demands(column: FeatureColumn) -> list[Demand]:
    """Return what a fitted column wants.

    Raises
    ------
    ExportError
        If the column is of a class of the user's.
    """
    if not type(column).__module__.startswith("skest."):  # which may read otherwise
        raise ExportError(
            f"The feature column {column.name!r} is a {type(column).__name__}, which "
            "cannot be exported. Use a column made by a function of "
            "skest.feature_columns."
        )
    return _demands(column)


@singledispatch
def _demands(column: Any) -> list[Demand]:
    raise NotImplementedError


@_demands.register
def _(column: NumericColumn) -> list[Demand]:
    dtype, shape = np.dtype(column.dtype).name, (None, *column.cell_shape)
    may_miss = column.default_value is not None
    if isinstance(column, sequence.SequenceNumericColumn):
        # (n_rows, n_steps), or (n_rows, n_steps, ...) where a step is a vector.
        inside = () if column.cell_shape == (1,) else column.cell_shape
        return [Demand(column.key, True, dtype, (None, None, *inside))]
    if isinstance(column, ParsedColumn) and column.parse != "number":
        return [Demand(column.key, True, DATE, shape, may_miss)]
    if isinstance(column, NumericPartColumn):
        shape = (None, column.n_columns)
        return [Demand(column.source_key, True, dtype, shape, may_miss)]
    if isinstance(column, JoinedNumericColumn):
        keys = column.feature_keys
        return [Demand(key, True, dtype, may_miss=may_miss) for key in keys]
    found = Demand(column.key, True, dtype, shape, may_miss)
    if isinstance(column, NumericFrameColumn):
        found = found._replace(names=tuple(column.feature_names))
    return [found._replace(is_parsed=isinstance(column, ParsedColumn))]


@_demands.register
def _(column: SparseMatrixColumn) -> list[Demand]:
    # Columns of X that the matrix has not stored are 0: none can be missing.
    return [Demand(column.key, True, None, (None, column.num_buckets), False)]


@_demands.register
def _(column: BucketizedColumn | PiecewiseLinearColumn) -> list[Demand]:
    # A missing number is in a bucket of its own, or in none: nothing need be filled in.
    return [demand._replace(may_miss=True) for demand in demands(column.source)]


@_demands.register
def _(column: PeriodicColumn) -> list[Demand]:
    return demands(column.source)


@_demands.register
def _(column: KeyedCategoricalColumn) -> list[Demand]:
    if isinstance(column, IdentityColumn):
        kind: str | None = "int64"
    elif isinstance(column, VocabularyColumn):
        kind = column.kind
    else:
        # What is divided is text. Else a hashed column may say its type, as in
        # TensorFlow.
        kind = "string" if column.delimiter else getattr(column, "dtype", None)
    return [
        Demand(
            *(column.key, False, kind),
            delimiter=column.delimiter,
            are_booleans=getattr(column, "are_booleans", False),
            takes_fractions=isinstance(column, NumberedVocabularyColumn),
        )
    ]


@_demands.register
def _(column: OneHotColumn | NumberedVocabularyPartColumn) -> list[Demand]:
    return [Demand(column.source_key, True, None, (None, column.n_columns))]


@_demands.register
def _(column: JoinedCategoricalColumn) -> list[Demand]:
    return [demand for own in column.categoricals for demand in demands(own)]


@_demands.register
def _(column: CrossedColumn) -> list[Demand]:
    found = []
    for key in column.hashed_keys:
        if isinstance(key, FeatureColumn):
            found += demands(key)
        else:
            found.append(Demand(key, False, None, is_crossed=True))
    return found


@_demands.register
def _(column: OverCategorical | CrossFittedColumn) -> list[Demand]:
    found = demands(column.categorical)
    # A sequence of one step is still one: its width is never fixed at 1.
    if isinstance(column, sequence.SequenceCategoricalColumn):
        return [demand._replace(shape=(None, None)) for demand in found]
    if isinstance(column, WeightedCategoricalColumn):
        # NaN stands behind the values.
        dtype = np.promote_types(column.dtype, np.float32).name
        # Of what is crossed, or given whole and in parts, no single input has the values.
        (values, *others) = found
        weighs = None if others or values.delimiter else str(values.key)
        found.append(
            Demand(column.weight_feature_key, True, dtype, (None, None), weighs=weighs)
        )
    return found


#: Type of numbers that are dates: the input has microseconds since 1970 in UTC.
DATE = "date"
_NO_CATEGORY = -1
# What means a missing integer where -1 is a value.
NO_INTEGER = int(np.iinfo(np.int64).min)
_ANY_MISSING = {"string": "", "int64": _NO_CATEGORY, "float32": np.nan}


class InputSpec(NamedTuple):
    """One input of an exported graph.

    Attributes
    ----------
    name : str
        Name of the input.
    key : str or int
        Key of the raw column.
    dtype : {"string", "int64", "float32", "float64"}
        Type of the elements.
    shape : tuple of int or None
        None is open; the first is the number of rows.
    missing : str, int, float or None
        What stands for a missing value, and pads shorter cells: "", an integer or NaN.
        None means that no value may be missing.
    delimiter : str or None
        What divides the values of a raw cell, which come to the graph one by one.
    names : tuple of str or None
        Columns of a frame that are the columns of this input.
    texts_only : bool
        Whether an integer is refused, not read as its decimal string.
    unit : str or None
        `MICROSECONDS` of dates, which come to the graph as such.
    numbers_only : bool
        Whether a string must be a number or blank: the graph makes one of it.
    from_texts : bool
        Whether numbers may be written as strings: whoever runs the graph makes numbers of
        them.
    booleans : bool
        Whether other spellings of "True" and "False" are refused.
    integers_only : bool
        Whether floats must be whole and exact: they are categories, too.
    weighs : str or None
        Name of the input that has as many values in each row.
    """

    name: str
    key: Key
    dtype: str
    shape: tuple[int | None, ...]
    missing: Any
    delimiter: str | None = None
    names: tuple[str, ...] | None = None
    texts_only: bool = False
    unit: str | None = None
    numbers_only: bool = False
    from_texts: bool = False
    booleans: bool = False
    integers_only: bool = False
    weighs: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Return a description that JSON can hold."""
        described = {**self._asdict(), "shape": list(self.shape)}
        del described["name"]
        names = described.pop("names")
        described["columns"] = None if names is None else list(names)
        if isinstance(self.missing, float):
            described["missing"] = "nan"
        # Not `not in`, to which 0 is False.
        return {k: v for k, v in described.items() if v is not None and v is not False}


class Category(NamedTuple):
    """Raw categories in the graph.

    Attributes
    ----------
    values : Value
        Strings or int64, of shape (n_rows, n_values).
    missing : tuple
        Values that mean a missing one to a categorical column.
    no_value : str or int
        The only one of them that is missing where -1 is a value.
    width : int or None
        `n_values`, if it is always the same.
    """

    values: Value
    missing: tuple[Any, ...]
    no_value: Any
    width: int | None


class Inputs:
    """Declares the inputs that columns need, and gives what columns read.

    Parameters
    ----------
    graph : Graph
        Gets the inputs.
    columns : iterable of FeatureColumn
        Fitted columns.
    dtype : numpy.dtype
        Floating type of the network.
    forms : dict of Form, default=None
        What is known about raw columns beyond what the columns say.

    Attributes
    ----------
    graph : Graph
        The graph.
    specs : list of InputSpec
        The inputs, in the order of the raw columns, so far as it is known.

    Raises
    ------
    ExportError
        If a column cannot be exported, or it is not known what a raw column holds.
    """

    def __init__(
        self,
        graph: Graph,
        columns: Iterable[FeatureColumn],
        dtype: Any,
        forms: Mapping[Key, Form] | None = None,
    ) -> None:
        self.graph = graph
        self._forms = forms or {}
        self.specs: list[InputSpec] = []
        self._values: dict[tuple[Key, str | None], tuple[InputSpec, Value]] = {}
        wanted: dict[tuple[Key, str | None], list[Demand]] = {}
        for demand in chain.from_iterable(map(demands, columns)):
            # All columns that read a raw column in one way share one input.
            wanted.setdefault((demand.key, demand.delimiter), []).append(demand)
        delimited = {key for key, delimiter in wanted if delimiter is None}
        places = {key: i for i, key in enumerate(self._forms)}
        in_order = sorted(wanted, key=lambda of: places.get(of[0], len(places)))
        for key, delimiter in in_order:
            of_input = wanted[key, delimiter]
            # Whole and in parts, a column is two inputs: an engine splits no strings.
            is_second = delimiter is not None and key in delimited
            name = f"{key}_split" if is_second else str(key)
            form = self._forms.get(key)
            self._declare(_spec(name, of_input, np.dtype(dtype), form))

    def _declare(self, spec: InputSpec) -> Value:
        # ONNX takes an empty name for an input that is left out.
        if not spec.name:
            raise ExportError(
                "A raw column has the name '', which no input of a graph may have. Give "
                "it another name."
            )
        # Keys are strings and numbers, names strings only: 1 and "1" are two columns of X.
        if any(spec.name == other.name for other in self.specs):
            raise ExportError(
                f"Two inputs would have the name {spec.name!r}, for it is that of two "
                "raw columns. Rename one of them."
            )
        self.specs.append(spec)
        dtype = STRING if spec.dtype == "string" else np.dtype(spec.dtype)
        value = self.graph.input(spec.name, dtype, spec.shape)
        self._values[spec.key, spec.delimiter] = (spec, value)
        return value

    def any_input(self) -> Value:
        """Declare an input of which only the rows count: the first raw column."""
        # A baseline reads no column, but the number of rows has to come from one.
        key, form = next(iter(self._forms.items()), ("x", Form("number", None)))
        dtype = "float32" if form.kind == "number" else form.kind
        spec = (str(key), key, dtype, (None, form.width), _ANY_MISSING[dtype])
        return self._declare(InputSpec(*spec, names=form.names))

    def numbers(self, key: Key) -> Value:
        """Return raw numbers, NaN where missing, or strings of them.

        They have the declared shape.
        """
        return self._values[key, None][1]

    def category(self, key: Key, delimiter: str | None = None) -> Category:
        """Return raw categories."""
        spec, values = self._values[key, delimiter]
        # _to_sparse_input_and_drop_ignore_values of TensorFlow leaves out -1 and "".
        missing: tuple[Any, ...] = tuple({_NO_CATEGORY, spec.missing})
        no_value = spec.missing
        if spec.dtype == "string":
            missing = ("",)
        elif spec.dtype != "int64":
            return of_numbers(values, spec.shape[1])
        return Category(values, missing, no_value, spec.shape[1])


def of_numbers(values: Value, width: int | None) -> Category:
    """Return numbers as categories; those that are not whole are cut off."""
    whole = where(values.is_nan(), NO_INTEGER, values).cast(np.int64)
    return Category(whole, (_NO_CATEGORY, NO_INTEGER), NO_INTEGER, width)


def _spec(
    name: str, demanded: Sequence[Demand], dtype: np.dtype, form: Form | None
) -> InputSpec:
    key, delimiter = demanded[0].key, demanded[0].delimiter
    numbers = [demand for demand in demanded if demand.is_number]
    categories = [demand for demand in demanded if not demand.is_number]
    names = next((demand.names for demand in demanded if demand.names), None)
    # Whoever reads parts of a matrix does not know the names of all of it.
    names = names or (None if form is None else form.names)
    no_number = np.nan if all(demand.may_miss for demand in numbers) else None
    if any(demand.dtype == DATE for demand in numbers):
        # One input has one type: microseconds are neither numbers of a user nor texts.
        if any(demand.dtype != DATE for demand in demanded):
            raise _two_ways(key, "dates and as something else")
        no_date = None if no_number is None else NO_INTEGER
        return InputSpec(name, key, "int64", (None, 1), no_date, unit=MICROSECONDS)
    if not categories:
        shape = _same_shape(key, [demand.shape for demand in numbers])
        number = _number_dtype(numbers, dtype)
        return InputSpec(
            *(name, key, number.name, shape, no_number, delimiter, names),
            from_texts=all(demand.is_parsed for demand in numbers),
            weighs=next((demand.weighs for demand in numbers if demand.weighs), None),
        )
    # Read as numbers and as categories: a string that is parsed serves both.
    kind = _category_kind(key, categories, form)
    are_strings = kind == "string" and all(demand.is_parsed for demand in numbers)
    if not numbers or are_strings:
        is_sequence = any(demand.shape[1:] != (1,) for demand in demanded)
        # With a width of 1 the graph needs no operator that finds the ends of lists.
        is_single = form is not None and form.width == 1 and delimiter is None
        width = 1 if numbers or (is_single and not is_sequence) else None
        is_crossed = any(demand.is_crossed for demand in categories)
        missing: Any = NO_INTEGER if is_crossed else _NO_CATEGORY
        # Hashed, integers are their decimal strings; crosses take them as they are.
        texts_only = is_crossed or any(d.dtype is not None for d in categories)
        if kind == "string":
            missing = None if no_number is None else ""
        return InputSpec(
            *(name, key, kind, (None, width), missing, delimiter),
            texts_only=kind == "string" and texts_only,
            numbers_only=bool(numbers),
            booleans=any(demand.are_booleans for demand in categories),
        )
    if kind == "string":
        raise _two_ways(key, "numbers and as strings")
    shape = _same_shape(key, [demand.shape for demand in numbers])
    # Not float32, in which ids above 2**24 would be rounded to others.
    return InputSpec(
        *(name, key, "float64", shape, no_number),
        integers_only=not all(demand.takes_fractions for demand in categories),
    )


def _two_ways(key: Key, ways: str) -> ExportError:
    return ExportError(
        f"Column {key!r} is read as {ways}, which one input cannot be. Give X the raw "
        "column a second time under another name."
    )


def _same_shape(key: Key, shapes: Sequence[tuple[int | None, ...]]) -> Any:
    first = shapes[0]
    for shape in shapes[1:]:
        agree = [a == b or None in (a, b) for a, b in zip(first, shape, strict=False)]
        if len(first) != len(shape) or not all(agree):
            raise _two_ways(key, f"numbers of the shapes {first} and {shape}")
        first = tuple(b if a is None else a for a, b in zip(first, shape, strict=True))
    return first


def _number_dtype(numbers: Sequence[Demand], dtype: np.dtype) -> np.dtype:
    dtypes = [np.dtype(d.dtype) if d.dtype is not None else dtype for d in numbers]
    common = np.result_type(*dtypes)
    if common.kind != "i":
        return common
    # No integer is NaN; float64 holds those up to 2**53.
    return np.dtype("float64" if any(d.may_miss for d in numbers) else "int64")


def _category_kind(key: Key, categories: Sequence[Demand], form: Form | None) -> str:
    """Return "string" or "int64": what columns say, else what the data were."""
    # A column that was told its type was fitted on it; the data come second.
    kinds = {demand.dtype for demand in categories if demand.dtype is not None}
    if len(kinds) > 1:
        raise _two_ways(key, "strings by one feature column and as integers by another")
    if kinds:
        return kinds.pop()
    if form is not None:
        return "string" if form.kind == "string" else "int64"
    if not any(demand.is_crossed for demand in categories):
        return "string"  # integers are hashed as their decimal strings
    raise ExportError(
        f"It is not known whether column {key!r}, which a crossed column reads, holds "
        "strings or integers, and their crosses differ. Say so in 'forms'."
    )
