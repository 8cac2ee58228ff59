# SPDX-License-Identifier: Apache-2.0
"""Columns of values that a vocabulary lists, which is given or learned."""

from collections import Counter
from collections.abc import Collection, Sequence, Set
from dataclasses import KW_ONLY, dataclass
from functools import partial
from itertools import repeat
from numbers import Integral
from typing import Any

import numpy as np
import pandas as pd

from skest.core.checks import check_choice, check_integer
from skest.core.texts import OF_BOOLEANS
from skest.feature_columns.base import check_key
from skest.feature_columns.categorical import (
    CELL_DTYPES,
    KeyedCategoricalColumn,
    bucket_ids,
    check_delimiter,
    check_kind,
    present_codes,
)
from skest.feature_columns.cells import BOOLEANS, Factorized, check_unicode
from skest.feature_columns.statistics import EmptyColumnError, summable
from skest.feature_columns.table import Key, Table

# Weights such as 0.1 are no exact numbers, so thirty of them are not quite 3.
_ROUNDING = 1e-9
#: Share of the rows that train what is said of new levels of numbers that name things.
HIDDEN_RATE = 0.1


class VocabularyColumn(KeyedCategoricalColumn):
    """Categorical column whose values have their positions in a vocabulary as ids.

    Subclasses have the parameters below and say what `vocabulary` is.

    Attributes
    ----------
    vocabulary_ : dict of str or int to int
        Ids of the values, in order of the ids.
    """

    dtype: str | None
    default_value: int | None
    num_oov_buckets: int
    missing_bucket: bool = False
    unknown_rate: float = 0.0

    @property
    def vocabulary(self) -> dict[Any, int]:
        """Ids of the values."""
        raise NotImplementedError

    @property
    def num_buckets(self) -> int:
        """Size of the vocabulary, and buckets for other values and missing ones."""
        # Behind all others, whose ids so stay what they are in TensorFlow.
        return self._missing_id + self.missing_bucket

    @property
    def _missing_id(self) -> int:
        """Id of missing cells, if they have a bucket."""
        return len(self.vocabulary) + self.num_oov_buckets

    def _validate_unknown(self, owner: str) -> None:
        """Check what becomes of values that are not in the vocabulary."""
        if self.default_value is not None:
            check_integer(self.default_value, "default_value", owner, minimum=-1)
        check_integer(self.num_oov_buckets, "num_oov_buckets", owner, minimum=0)
        # As in TensorFlow: a value out of vocabulary has one id.
        if self.num_oov_buckets and self._default_id != -1:
            raise ValueError(
                f"{owner} has both 'num_oov_buckets' and 'default_value', which give an "
                "id to the same values; use one of them."
            )

        check_choice(self.missing_bucket, "missing_bucket", owner, (False, True))
        if not 0 <= self.unknown_rate < 1:
            raise ValueError(
                f"'unknown_rate' of {owner} must be a number from 0 to less than 1; got "
                f"{self.unknown_rate!r}."
            )
        if self.unknown_rate and not self.num_oov_buckets:
            raise ValueError(
                f"'unknown_rate' of {owner} needs a bucket for values that count as "
                "unknown. Set num_oov_buckets=1."
            )

    @property
    def _default_id(self) -> int:
        return -1 if self.default_value is None else self.default_value

    def _check_default(self, n_values: int) -> None:
        owner = f"vocabulary column {self.key!r}, of {n_values} values,"
        check_integer(self._default_id, "default_value", owner, -1, n_values - 1)

    def _check_findable(self, values: Collection[Any], vocabulary: str) -> None:
        """Raise ValueError if a value is -1, which is read as missing."""
        # TensorFlow reads -1 and "" so, in _to_sparse_input_and_drop_ignore_values.
        if -1 in values:
            raise ValueError(
                f"{vocabulary} must not hold -1, which means missing in a column of "
                "integers and would never be found. Leave it out; or, if it is a value "
                "like others, make strings of the column and of the vocabulary."
            )

    def _cells(self, table: Table) -> Factorized:
        cells = table.factorized(self.key, self.delimiter)
        # What databases, and files, write for booleans.
        if self.are_booleans and cells.are_integers and {*cells.distinct} <= {0, 1}:
            cells = cells._replace(distinct=BOOLEANS[cells.distinct])
        self._check_cells(cells)
        return cells

    def _check_cells(self, cells: Factorized) -> None:
        source = f"the vocabulary of column {self.key!r}"
        check_kind(cells, self.kind, source, lambda: self.vocabulary)

    @property
    def kind(self) -> str | None:
        """Type of the values, "string" or "int64", or None if it is still unknown."""
        return self.dtype

    @property
    def are_booleans(self) -> bool:
        """Whether the values are the two that were learned of booleans."""
        is_learned = getattr(self, "vocabulary_list", ()) is None
        learned = vars(self).get("vocabulary_")
        return is_learned and learned == {"False": 0, "True": 1}

    def _check_spelling(self, given: list[Any]) -> None:
        wrong = [cell for cell in given if cell in OF_BOOLEANS]
        if wrong:
            raise ValueError(
                f"Column {self.key!r} holds {wrong}, where fit has seen True and False. "
                "Convert it, e.g. by .map({'true': True, 'false': False})."
            )

    def _ids_of(self, distinct: np.ndarray) -> np.ndarray:
        vocabulary = self.vocabulary
        given = distinct.tolist()
        if self.are_booleans:
            self._check_spelling(given)
        found = map(vocabulary.get, given, repeat(-1))
        ids = np.fromiter(found, dtype=np.int64, count=len(distinct))
        # Behind the vocabulary come the buckets, as in index_table_from_tensor of
        # TensorFlow.
        unknown = np.flatnonzero(ids < 0)
        if self.num_oov_buckets and len(unknown):
            spread = bucket_ids(distinct[unknown], self.num_oov_buckets)
            ids[unknown] = len(vocabulary) + spread
        else:
            ids[unknown] = self._default_id
        return ids

    def ids(self, table: Table) -> tuple[np.ndarray, np.ndarray]:
        """Return the ids; of a row without value, the first may be the missing one."""
        if self.are_booleans and table.cells(self.key).dtype == bool:
            # A table may have hundreds of them, which are their ids.
            ids = np.asarray(table.cells(self.key), np.int64).reshape(table.n_rows, -1)
            return ids, np.ones(ids.shape, bool)
        ids, present = super().ids(table)
        if self.missing_bucket:
            # In the first place of the row, so that the bucket is looked up once for a
            # row.
            ids[~present.any(axis=1), 0] = self._missing_id
        return ids, present

    @property
    def _training_key(self) -> str:
        # With its size: the parts of a model may have two vocabularies of one raw
        # column.
        return f"__training_{self.encoded_key}_of_{self.num_buckets}__"

    def training_features(
        self,
        table: Table,
        sample_weight: np.ndarray | None,
        generator: np.random.Generator,
    ) -> dict[str, np.ndarray]:
        """Return ids of which some are as if their values were unknown."""
        if not self.unknown_rate:
            return {}
        ids, present = self.ids(table)
        # As ml4ir does: the vector of unknown values is trained on known ones that are
        # hidden.
        hidden = present & (
            (generator.random(ids.shape) < self.unknown_rate)
            | self._hidden_rows(table.n_rows)[:, np.newaxis]
        )
        # Over all buckets, as unknown values are spread by their hash.
        buckets = generator.integers(self.num_oov_buckets, size=ids.shape)
        ids = np.where(hidden, len(self.vocabulary) + buckets, ids)
        return {self._training_key: ids}

    def _encoded(self, table: Table) -> dict[str, np.ndarray]:
        if self.unknown_rate and self._training_key in table:
            return {self.encoded_key: table.column(self._training_key)}
        return super()._encoded(table)

    def _categories_of(self, ids: np.ndarray) -> np.ndarray:
        others = self.num_oov_buckets + self.missing_bucket
        values = [*self.vocabulary, *[None] * others]
        return np.array(values, dtype=object)[ids]

    def _bucket_names(self) -> list[str]:
        names = {str(value): None for value in self.vocabulary}
        others = [f"oov{i}" for i in range(self.num_oov_buckets)]
        others += ["missing"] * self.missing_bucket
        # Names of outputs have to differ; those of values stay as they are.
        while any(name in names for name in others):
            others = [f"_{name}" for name in others]  # a value has the name of a bucket
        return [*names, *others]


def categorical_column_with_vocabulary_list(
    key: Key,
    vocabulary_list: Sequence[str] | Sequence[int] | None = None,
    dtype: str | None = None,
    default_value: int = -1,
    num_oov_buckets: int = 0,
    min_frequency: float = 1,
    max_categories: int | None = None,
    *,
    delimiter: str | None = None,
    missing_bucket: bool = False,
    unknown_rate: float = 0.0,
) -> "VocabularyListColumn":
    r"""Strings or integers of a vocabulary, given or learned.

    The id of a value is its position in the vocabulary. A value that is not in it has
    no id, unless `default_value` or `num_oov_buckets` give it one. A missing cell (None,
    NaN, "" or the integer -1) has none, unless `missing_bucket` gives it one.

    For an embedding of many levels, ``num_oov_buckets=1, min_frequency=5,
    missing_bucket=True, unknown_rate=0.01`` trains one vector for what is rare or
    unknown, and one for what is missing.

    Parameters
    ----------
    key : str or int
        Name of the raw column, or its position in an array.
    vocabulary_list : sequence of str or of int, default=None
        The vocabulary, without duplicates and -1. None learns it: the sorted values of
        the training data.
    dtype : {"string", "int64"} or None, default=None
        Type that the cells must have. None takes it from the vocabulary.
    default_value : int, default=-1
        Id of all values out of vocabulary; -1 is no id.
    num_oov_buckets : int, default=0
        Number of further ids, ``len(vocabulary)`` and up, over which values out of
        vocabulary are spread by their hash. Excludes `default_value`.
    min_frequency : int or float, default=1
        How frequent a value must be to be learned. Its frequency is the sum of the
        weights of the rows it occurs in (counted as often as it does), without weights
        the number of its occurrences. An integer is a frequency, and 1 learns every
        value of a row with positive weight, however small. A float between 0 and 1 is a
        share of the frequency of all cells: of the sum of the weights of all rows,
        without weights of their number. A cell counts once, whether it holds no value,
        one or several (so a value that is often several times in a cell may have a share
        of more than 1); for `shared_embeddings` a row has a cell in each column.
    max_categories : int or None, default=None
        Learn at most so many values, the most frequent ones; of equally frequent ones,
        those that come first in sorted order.
    delimiter : str or None, default=None
        Where strings are split into several values, e.g. "|" for "a|b|c"; empty parts
        are missing. ``r"\w+"`` takes the words, in lower case and without what stands
        between them. Without a delimiter, a cell has several values if it is a list.
    missing_bucket : bool, default=False
        Whether a cell without a value has an id of its own, the last one.
    unknown_rate : float, default=0.0
        Share of the values that count as unknown in the training of an estimator, drawn
        once for each `fit`, so that the bucket of `num_oov_buckets` is trained.

    Returns
    -------
    VocabularyListColumn

    Raises
    ------
    ValueError, TypeError
        If a parameter is wrong.

    Notes
    -----
    The semantics are those of
    ``tf.feature_column.categorical_column_with_vocabulary_list``; learning is an
    addition.

    Examples
    --------
    >>> import numpy as np
    >>> from skest.feature_columns import categorical_column_with_vocabulary_list
    >>> column = categorical_column_with_vocabulary_list("color", num_oov_buckets=1)
    >>> column = column.fit({"color": np.array(["red", "green", "red"])})
    >>> column.vocabulary_
    {'green': 0, 'red': 1}
    >>> column.encode({"color": np.array(["red", "blue", ""])})["color_ids"]
    array([[ 1],
           [ 2],
           [-1]])
    """
    return VocabularyListColumn(
        key,
        vocabulary_list,
        dtype,
        default_value,
        num_oov_buckets,
        min_frequency,
        max_categories,
        delimiter=delimiter,
        missing_bucket=missing_bucket,
        unknown_rate=unknown_rate,
    ).validated()


@dataclass(eq=False, repr=False)
class VocabularyListColumn(VocabularyColumn):
    """Column made by `categorical_column_with_vocabulary_list`, see there.

    Attributes
    ----------
    vocabulary_ : dict of str or int to int
        Ids of the values, in order of the ids.
    """

    key: Key
    vocabulary_list: Sequence[str] | Sequence[int] | None = None
    dtype: str | None = None
    default_value: int = -1
    num_oov_buckets: int = 0
    min_frequency: float = 1
    max_categories: int | None = None
    _: KW_ONLY
    delimiter: str | None = None
    missing_bucket: bool = False
    unknown_rate: float = 0.0

    @property
    def vocabulary(self) -> dict[Any, int]:
        """Ids of the values, given or learned."""
        # One that is given is of use without `fit`, as in TensorFlow.
        if "vocabulary_" not in vars(self) and self.vocabulary_list is not None:
            return {value: i for i, value in enumerate(self._given)}
        return self._learned("vocabulary_", "give 'vocabulary_list'")

    @property
    def needs_fit(self) -> bool:
        """Whether the vocabulary is to be learned."""
        return self.vocabulary_list is None

    @property
    def _given(self) -> list[Any]:
        """The parameter `vocabulary_list` as a list, of Python numbers if an array."""
        # As objects: NumPy would make strings of numbers that stand among strings.
        return np.array(self.vocabulary_list, dtype=object).tolist()

    @property
    def kind(self) -> str | None:
        """Type of the values, "string" or "int64", or None if it is still unknown."""
        if self.dtype is not None:
            return self.dtype
        known = vars(self).get("vocabulary_", self.vocabulary_list)
        if known is None or len(known) == 0:
            return None
        return _kind_of_values([next(iter(known))])  # all are of one kind

    def _validate(self) -> None:
        owner = f"vocabulary column {self.key!r}"
        check_key(self.key, owner)
        check_choice(self.dtype, "dtype", owner, CELL_DTYPES)
        self._validate_unknown(owner)
        _check_min_frequency(self.min_frequency, owner)
        if self.max_categories is not None:
            check_integer(self.max_categories, "max_categories", owner, minimum=1)
        if self.vocabulary_list is not None:
            self._validate_vocabulary(owner)
        check_delimiter(self.delimiter, owner, self.kind)

    def _validate_vocabulary(self, owner: str) -> None:
        given = self.vocabulary_list
        if isinstance(given, str | Set) or not isinstance(given, Collection):
            raise TypeError(
                f"'vocabulary_list' of {owner} must be a list of values, whose order is "
                f"that of the ids; got the {type(given).__name__} {given!r}."
            )
        values = self._given
        found = _kind_of_values(values)
        if found is None:
            raise ValueError(
                f"'vocabulary_list' of {owner} must be a non-empty list either of strings "
                f"or of integers; got {self.vocabulary_list!r}."
            )
        if self.dtype not in (None, found):
            raise ValueError(
                f"'dtype' of {owner} is {self.dtype!r}, but its vocabulary is of "
                f"{found!r}."
            )
        if found == "string":
            check_unicode(values, f"'vocabulary_list' of {owner}")
        self._check_findable(values, f"'vocabulary_list' of {owner}")
        if len(set(values)) < len(values):
            twice, _ = Counter(values).most_common(1)[0]
            raise ValueError(
                f"'vocabulary_list' of {owner} must have no duplicates; got {twice!r} "
                "more than once."
            )
        if self.min_frequency != 1 or self.max_categories is not None:
            raise ValueError(
                f"'min_frequency' and 'max_categories' of {owner} choose what to learn "
                "and have no meaning when 'vocabulary_list' is given; leave one side out."
            )
        self._check_default(len(values))

    def _learn(self, table: Table) -> dict[str, Any]:
        if self.vocabulary_list is not None:
            return {"vocabulary_": self.vocabulary}
        vocabulary = self._most_frequent(table)
        self._check_default(len(vocabulary))
        return {"vocabulary_": vocabulary}

    def _most_frequent(self, table: Table) -> dict[Any, int]:
        """Return ids of the values that occur often enough."""
        # Counted once for the table: the wide part takes all levels, the deep part the
        # frequent ones.
        distinct, frequency, total = table.learned(
            ("frequencies", self.key, self.delimiter, self.dtype),
            partial(self._frequencies, table),
        )
        if self.min_frequency != 1:
            is_share = not isinstance(self.min_frequency, Integral)
            least = self.min_frequency * (total if is_share else 1)
            enough = frequency >= least * (1 - _ROUNDING)
            distinct, frequency = distinct[enough], frequency[enough]
        if self.max_categories is not None:
            # Of values as frequent, the first count. Python sorts strings the quickest.
            listed = distinct.tolist()
            order = np.array(
                sorted(range(len(listed)), key=listed.__getitem__), np.intp
            )
            most_frequent = order[np.argsort(-frequency[order], kind="stable")]
            distinct = distinct[most_frequent[: self.max_categories]]
        if len(distinct) == 0 and not self.num_oov_buckets:
            raise EmptyColumnError(
                f"Column {self.key!r} has no value that occurs often enough "
                f"(min_frequency={self.min_frequency}), so there is no vocabulary to "
                "learn. Leave the column out, lower 'min_frequency', or give "
                "'vocabulary_list'."
            )
        # Sorted, so that ids do not depend on the order of the rows.
        return {value: i for i, value in enumerate(sorted(distinct.tolist()))}

    def _frequencies(self, table: Table) -> tuple[np.ndarray, np.ndarray, float]:
        """Values of rows that count, their frequencies, and that of all cells."""
        cells = self._cells(table)
        codes = present_codes(cells).reshape(table.n_rows, -1)
        counted = table.counted(codes >= 0)
        weights, total = None, float(len(codes))
        if table.weight is not None:
            # In whichever order the rows come, the sums are the same, and so is what is
            # frequent.
            weight = summable(table.weight)
            weights = np.broadcast_to(weight[:, np.newaxis], codes.shape)[counted]
            # Of all cells: one without a value counts, too.
            total = float(weight.sum())
        codes, size = codes[counted], len(cells.distinct)
        # By counts: what a very small weight adds may be rounded away, and counts all
        # the same.
        occurring = np.flatnonzero(np.bincount(codes, minlength=size))
        frequency = np.bincount(codes, weights, minlength=size)
        return cells.distinct[occurring], frequency[occurring], total


@dataclass(eq=False, repr=False)
class NumberedVocabularyColumn(VocabularyListColumn):
    """Vocabulary of a column of numbers that name things, as a fit finds them.

    Whoever gave numbers may give others, of which the whole part counts: integers with
    gaps, which are floats, and the steps of a partial dependence.

    Parameters
    ----------
    key, vocabulary_list, dtype, default_value, num_oov_buckets, min_frequency, \
max_categories, delimiter, missing_bucket, unknown_rate
        As of `categorical_column_with_vocabulary_list`.

    Examples
    --------
    >>> import numpy as np
    >>> from skest.feature_columns.vocabulary import NumberedVocabularyColumn
    >>> column = NumberedVocabularyColumn("shop").fit({"shop": np.array([7, 9])})
    >>> column.encode({"shop": np.array([9.0, 7.5, np.nan])})["shop_level_ids"]
    array([[ 1],
           [ 0],
           [-1]])
    """

    @property
    def name(self) -> str:
        """The key and ``_level``: the number beside it has the key as its name."""
        return f"{self.key}_level"

    def _hidden_rows(self, n_rows: int) -> np.ndarray:
        """Return rows whose level is unknown in training, of all such columns the same.

        What the number tells of new levels is learned from them.
        """
        hidden: np.ndarray = np.random.default_rng(0).random(n_rows) < HIDDEN_RATE
        return hidden

    def _numbers(self, table: Table) -> np.ndarray:
        return table.numbers(self.key)

    def _cells(self, table: Table) -> Factorized:
        values = self._numbers(table)
        if values.dtype.kind != "f":
            return super()._cells(table)
        codes, distinct = pd.factorize(np.trunc(values).ravel())
        return Factorized(codes, distinct.astype(np.int64))


def _check_min_frequency(value: Any, owner: str) -> None:
    if isinstance(value, Integral) or not isinstance(value, float):
        check_integer(value, "min_frequency", owner, minimum=1)
    elif not 0 < value < 1:
        raise ValueError(
            f"'min_frequency' of {owner} must be an integer, or a float between 0 and 1 "
            f"that is a share of all cells; got {value!r}."
        )


def _kind_of_values(values: list[Any]) -> str | None:
    """Return "string" or "int64" if all values are of that kind, else None."""
    if values and all(isinstance(value, str) for value in values):
        return "string"
    # True is an integer to Python, while cells that are booleans are read as strings.
    integers = (isinstance(v, Integral) and not isinstance(v, bool) for v in values)
    return "int64" if values and all(integers) else None
