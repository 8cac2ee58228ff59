# SPDX-License-Identifier: Apache-2.0
"""Categorical columns made dense: `indicator_column` and `embedding_column`."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Generator, Tensor

from skest.core.checks import (
    check_choice,
    check_integer,
    check_positive,
    former_arguments,
)
from skest.feature_columns.base import (
    CategoricalColumn,
    DenseColumn,
    Matrix,
    OverCategorical,
    TrainedColumn,
    check_categorical,
)
from skest.feature_columns.lookup import COMBINERS, combined_rows
from skest.feature_columns.table import Table

Initializer = Callable[[Tensor], Any] | Callable[[Tensor, Generator], Any]

_LARGEST_AUTO_DIMENSION = 16
_DRAWN_AT_ONCE = 2**20


class CategoricalWrapper(OverCategorical, DenseColumn):
    """Dense column over a categorical one, the parameter `categorical_column`."""

    @property
    def _prefix(self) -> str:
        """Of the keys: without one, the same ids serve all columns over them."""
        return ""

    @property
    def encoded_key(self) -> str:
        """Key of the categorical column."""
        return f"{self._prefix}{self.categorical_column.encoded_key}"

    @property
    def length_key(self) -> str | None:
        """Key of the lengths, if the categorical column is a sequence."""
        key = self.categorical_column.length_key
        return key and f"{self._prefix}{key}"

    @property
    def weight_key(self) -> str | None:
        """Key of the weights, if the categorical column is weighted."""
        key = self.categorical_column.weight_key
        return key and f"{self._prefix}{key}"

    def _validate(self) -> None:
        check_categorical(self.categorical_column, f"an {type(self).__name__}")

    def _encoded(self, table: Table) -> dict[str, np.ndarray]:
        return self.categorical._encoded(table)


def indicator_column(categorical_column: CategoricalColumn) -> "IndicatorColumn":
    """Count the ids of a categorical column: one-hot, or multi-hot for several values.

    Parameters
    ----------
    categorical_column : CategoricalColumn
        Any categorical or bucketized column.

    Returns
    -------
    IndicatorColumn

    Raises
    ------
    TypeError
        If the argument is something else.

    Notes
    -----
    The semantics are those of ``tf.feature_column.indicator_column``.

    Examples
    --------
    >>> import numpy as np
    >>> from skest.feature_columns import categorical_column_with_identity
    >>> from skest.feature_columns import indicator_column
    >>> column = indicator_column(categorical_column_with_identity("c", 3))
    >>> column.transform({"c": np.array([[0, 0], [2, -1]])})
    array([[2., 0., 0.], [0., 0., 1.]], dtype=float32)
    """
    return IndicatorColumn(categorical_column).validated()


@dataclass(eq=False, repr=False)
class IndicatorColumn(CategoricalWrapper):
    """Column made by `indicator_column`, where the parameter is documented.

    Attributes
    ----------
    categorical_column_ : CategoricalColumn
        The fitted categorical column.
    """

    categorical_column: CategoricalColumn

    @property
    def name(self) -> str:
        """Name of the categorical column and ``_indicator``."""
        return f"{self.categorical_column.name}_indicator"

    @property
    def size(self) -> int:
        """Number of ids."""
        return self.categorical.num_buckets

    def _matrix(self, table: Table) -> Matrix:
        return self.categorical._matrix(table)

    def _output_names(self) -> list[str]:
        return self.categorical._output_names()


@former_arguments(
    ckpt_to_load_from="copy the table in an 'initializer', or use 'warm_start_from'",
    tensor_name_in_ckpt="copy the table in an 'initializer', or use 'warm_start_from'",
)
def embedding_column(
    categorical_column: CategoricalColumn,
    dimension: int | str,
    combiner: str = "mean",
    initializer: Initializer | None = None,
    max_norm: float | None = None,
    trainable: bool = True,
) -> "EmbeddingColumn":
    """Give each id of a categorical column a vector that the network learns.

    Parameters
    ----------
    categorical_column : CategoricalColumn
        Any categorical or bucketized column.
    dimension : int or "auto"
        Length of the vectors; "auto" is ``min(16, round(6 * num_buckets ** 0.25))``.
    combiner : {"mean", "sqrtn", "sum"}, default="mean"
        How the vectors of a cell with several values become one. A cell without id
        gives zeros.
    initializer : callable or None, default=None
        A function of a tensor that fills it in place, such as those of
        `torch.nn.init`. It gets the source of random numbers as its parameter
        `generator` or, where it requires two arguments, as the second. None draws from
        a normal distribution of mean 0 and standard deviation ``1 / sqrt(dimension)``,
        cut off at two standard deviations.
    max_norm : float or None, default=None
        Longer vectors (L2 norm) are scaled to this length at look-up.
    trainable : bool, default=True
        Whether training changes the table.

    Returns
    -------
    EmbeddingColumn

    Raises
    ------
    ValueError, TypeError
        If a parameter is wrong.

    Notes
    -----
    The semantics are those of ``tf.feature_column.embedding_column``.

    Examples
    --------
    >>> from skest.feature_columns import categorical_column_with_hash_bucket
    >>> from skest.feature_columns import embedding_column
    >>> column = embedding_column(categorical_column_with_hash_bucket("url", 81), "auto")
    >>> column.size
    16
    """
    return EmbeddingColumn(
        categorical_column, dimension, combiner, initializer, max_norm, trainable
    ).validated()


@dataclass(eq=False, repr=False)
class EmbeddingColumn(CategoricalWrapper, TrainedColumn):
    """Column made by `embedding_column`, where the parameters are documented.

    Attributes
    ----------
    categorical_column_ : CategoricalColumn
        The fitted categorical column.
    weights_ : ndarray of shape (num_buckets, size)
        The learned table. A network learns it, so it is set by the estimator on its
        fitted copy of the column; `transform` needs it, and `fit` refuses to lose it.
    """

    categorical_column: CategoricalColumn
    dimension: int | str
    combiner: str = "mean"
    initializer: Initializer | None = None
    max_norm: float | None = None
    trainable: bool = True

    # Not the combiner, nor max_norm: each look-up has its own.
    _of_table = ("categorical_column", "dimension", "trainable")

    @property
    def name(self) -> str:
        """Name of the categorical column and ``_embedding``."""
        # As TensorFlow names columns; a checkpoint of either names its variables by
        # them.
        return f"{self.categorical_column.name}_embedding"

    @property
    def table_name(self) -> str:
        """Name of the table, which shared embeddings have in common."""
        return self.name

    @property
    def table_parameters(self) -> dict[str, Any]:
        """Parameters that describe the table, in which all its columns must agree."""
        return {name: getattr(self, name) for name in self._of_table}

    @property
    def size(self) -> int:
        """Length of the vectors."""
        if isinstance(self.dimension, str):
            # The rule of Wang et al., "Deep & Cross Network" (arXiv 1708.05123, section
            # 4.2), up to a length.
            dimension = round(6 * self.categorical.num_buckets**0.25)
            return min(_LARGEST_AUTO_DIMENSION, dimension)
        return self.dimension

    def _validate(self) -> None:
        super()._validate()
        owner = f"embedding column {self.name!r}"
        # "auto" waits for the vocabulary.
        if self.dimension != "auto":
            check_integer(self.dimension, "dimension", owner, minimum=1)
        check_choice(self.combiner, "combiner", owner, COMBINERS)
        if self.categorical_column.is_summed and self.combiner != "sum":
            raise ValueError(
                f"{owner} is of a matrix of numbers, which have no mean over a row; got "
                f"combiner={self.combiner!r}. Set combiner='sum'."
            )
        if self.initializer is not None:
            _of_tensor_and_generator(self.initializer, owner)
        if self.max_norm is not None:
            check_positive(self.max_norm, "max_norm", owner)

    def initial_weights(self, generator: Generator, dtype: torch.dtype) -> Tensor:
        """Return a new table.

        Parameters
        ----------
        generator : torch.Generator
            Source of all random numbers, on the CPU.
        dtype : torch.dtype
            A floating point type.

        Returns
        -------
        Tensor of shape (num_buckets, size)
        """
        weights = torch.empty(self.categorical.num_buckets, self.size, dtype=dtype)
        with torch.no_grad():
            if self.initializer is None:
                # As tf.feature_column.embedding_column: a truncated normal
                # distribution.
                # The deviation of the distribution before it is cut, as
                # truncated_normal_initializer of TensorFlow has it.
                std = self.size**-0.5
                # In blocks, because drawing takes several times the memory drawn.
                for block in weights.split(max(1, _DRAWN_AT_ONCE // self.size)):
                    _draw_truncated_normal(block, std, generator)
            else:
                fill = _of_tensor_and_generator(self.initializer, self.name)
                # Initializers of Keras return a new array; those would be lost without
                # a word.
                result = fill(weights, generator)
                if (
                    isinstance(result, Tensor)
                    and result.data_ptr() != weights.data_ptr()
                ):
                    raise TypeError(
                        f"'initializer' of {self.name} must fill the tensor that it is "
                        "given, such as torch.nn.init.zeros_; it returned another tensor."
                    )
        return weights

    def _matrix(self, table: Table) -> np.ndarray:
        # In the memory of the checkpoint, where the table is once.
        weights = torch.as_tensor(self._trained_weights)
        encoded = {k: torch.from_numpy(v) for k, v in self._encoded(table).items()}
        return combined_rows(
            weights,
            encoded[self.encoded_key],
            self.combiner,
            self.max_norm,
            encoded[self.weight_key] if self.weight_key else None,
        ).numpy()

    def _output_names(self) -> list[str]:
        return [f"{self.name}_{i}" for i in range(self.size)]


def _of_tensor_and_generator(initializer: Any, owner: str) -> Callable[..., Any]:
    """Return an initializer as a function of both, whichever it takes."""
    if callable(initializer):
        try:
            signature = inspect.signature(initializer)
        except ValueError:  # methods of tensors have none
            return lambda tensor, generator: initializer(tensor)
        # As those of torch.nn.init.
        if "generator" in signature.parameters and _takes(signature, 0, generator=1):
            return lambda tensor, generator: initializer(tensor, generator=generator)
        if _takes(signature, 0):
            return lambda tensor, generator: initializer(tensor)
        # constant_(tensor, val) has none: a generator would be taken for the value.
        of_torch = getattr(initializer, "__module__", None) == torch.nn.init.__name__
        if _takes(signature, 0, 1) and not of_torch:
            return initializer
    raise TypeError(
        f"'initializer' of {owner} must be None or a function of a tensor, or of a tensor "
        "and a generator; set other arguments by functools.partial, such as "
        f"partial(torch.nn.init.constant_, val=0.1). Got {initializer!r}."
    )


def _takes(signature: inspect.Signature, *args: Any, **kwargs: Any) -> bool:
    try:
        signature.bind(*args, **kwargs)
    except TypeError:
        return False
    return True


def _draw_truncated_normal(block: Tensor, std: float, generator: Generator) -> None:
    """Fill a block from a normal distribution without what is over two deviations off.

    `torch.nn.init.trunc_normal_` draws the whole block anew until nothing is left to be
    replaced, which takes some five times as long.
    """
    values = block.view(-1).normal_(generator=generator)
    outside = (values.abs() > 2).nonzero().flatten()
    # Each time 4.6 % of those are left: the share of a normal distribution beyond two.
    while len(outside):
        again = torch.empty(len(outside), dtype=block.dtype).normal_(
            generator=generator
        )
        values[outside] = again
        outside = outside[again.abs() > 2]
    block.mul_(std)
