# SPDX-License-Identifier: Apache-2.0
"""What rows and columns of the variables of a fitted estimator stand for."""

from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple

from torch import Tensor

from skest.adapters.parts import part_prefix, table_scope
from skest.adapters.targets.base import Target
from skest.feature_columns.base import CategoricalColumn, DenseColumn, FeatureColumn
from skest.feature_columns.categorical import IdentityColumn
from skest.feature_columns.columns import FeatureColumns
from skest.feature_columns.crossed import CrossedColumn
from skest.feature_columns.dense import EmbeddingColumn
from skest.feature_columns.modules import module_name, parameter_name
from skest.feature_columns.nested import OverCategorical
from skest.feature_columns.periodic import PeriodicColumn
from skest.feature_columns.piecewise import PiecewiseLinearColumn
from skest.feature_columns.vocabulary import VocabularyColumn
from skest.vocab_info import VocabInfo

__all__ = [
    "Axes",
    "Meaning",
    "column_axes",
    "inputs_meaning",
    "logits_meaning",
    "outputs_meaning",
]


class Meaning(NamedTuple):
    """What the entries of a variable along an axis stand for.

    Attributes
    ----------
    kind : hashable
        Entries of different kinds have nothing to do with each other.
    entries : sequence of hashable
        All different.

    Examples
    --------
    >>> from skest.adapters.meanings import Meaning
    >>> before, now = Meaning("vocabulary", ["a", "b"]), Meaning("vocabulary", ["b", "c"])
    >>> now.since(before, axis=0).sources(n_new=2, n_old=2)
    array([ 1, -1])
    >>> now.since(now, axis=0)
    """

    kind: Hashable
    entries: Sequence[Hashable]

    def since(self, before: "Meaning", axis: int) -> VocabInfo | None:
        """Return what changed; None if nothing did."""
        if self == before:
            return None
        old = before.entries if self.kind == before.kind else ()
        return VocabInfo(
            self.entries, -1, 0, old, backup_initializer=_as_it_starts, axis=axis
        )


#: Meanings by axis, by name of a variable.
Axes = dict[str, dict[int, Meaning]]


def _as_it_starts(variable: Tensor) -> None:
    """Leave new entries as they are in a new model."""


def column_axes(
    columns: FeatureColumns, parameter: str, kind: str, logits: Meaning
) -> Axes:
    """Return the meanings of the variables that belong to columns.

    Parameters
    ----------
    columns : FeatureColumns
        Fitted.
    parameter : str
        Which parameter of the estimator they are, that is, for which part of the network.
    kind : {"dense", "linear", "sequence", "context"}
        What takes the columns.
    logits : Meaning
        Of the output.

    Returns
    -------
    dict of str to dict of int to Meaning
        Of the tables of columns and of the weights of a linear model.
    """
    axes: Axes = {}
    for column in columns.active:
        if isinstance(column, EmbeddingColumn):
            name = parameter_name(column.table_name)
            axes[table_scope(parameter, kind) + name] = {
                0: ids_meaning(column),
                1: outputs_meaning(column),
            }
        elif isinstance(column, PeriodicColumn):
            module = f"{table_scope(parameter, kind)}{module_name(column.name)}."
            axes |= {module + name: of for name, of in _periodic_axes(column).items()}
        is_piecewise = isinstance(column, PiecewiseLinearColumn)
        if is_piecewise and column.dimension and kind != "linear":
            axes[table_scope(parameter, kind) + parameter_name(column.name)] = {
                0: code_meaning(column),
                1: Meaning("dimension", range(column.dimension)),
            }
        if kind == "linear":
            if is_piecewise:
                rows = code_meaning(column)
            elif isinstance(column, CategoricalColumn):
                rows = ids_meaning(column)
            else:
                rows = outputs_meaning(column)
            axes[part_prefix(parameter) + parameter_name(column.name)] = {
                0: rows,
                1: logits,
            }
    return axes


def _periodic_axes(column: PeriodicColumn) -> Axes:
    elements = Meaning("elements", range(column.source_column.n_elements))
    waves = Meaning("waves", range(column.n_frequencies))
    dimension = Meaning("dimension", range(column.dimension - 1))
    return {
        "frequencies": {0: elements, 1: waves},
        "phases": {0: elements, 1: waves},
        "weights": {0: elements, 1: waves, 2: dimension},
        "bias": {0: elements, 1: dimension},
    }


def logits_meaning(target: Target) -> Meaning:
    """Return what the logits stand for: classes, labels or numbers."""
    return Meaning("logits", _logits_of(target))


def _logits_of(target: Any) -> list[Hashable]:
    if hasattr(target, "targets"):
        return [
            (name, logit)
            for name, single in target.targets.items()
            for logit in _logits_of(single)
        ]
    head = target.head(None)
    classes = getattr(target, "classes", None)
    names = None if classes is None else tuple(classes.tolist())
    if names is None or len(names) != head.logits_dimension:
        # Two classes have one logit, which is of both.
        names = tuple((names, i) for i in range(head.logits_dimension))
    return [(type(head).__name__, name) for name in names]


def inputs_meaning(columns: Sequence[FeatureColumns | None]) -> Meaning:
    """Return what the inputs of a network stand for: outputs of columns."""
    entries = []
    for several in columns:
        active = [] if several is None else several.active
        for column in sorted(active, key=lambda column: column.name):
            outputs = outputs_meaning(column)
            entries += [(column.name, outputs.kind, e) for e in outputs.entries]
    return Meaning("inputs", entries)


def outputs_meaning(column: FeatureColumn) -> Meaning:
    """Return what the elements of the output of a dense column stand for."""
    if isinstance(column, EmbeddingColumn):
        return Meaning("dimension", range(column.size))
    if isinstance(column, PiecewiseLinearColumn):
        if column.dimension is None:
            return code_meaning(column)
        return Meaning("dimension", range(column.size))
    if isinstance(column, OverCategorical | CategoricalColumn):
        return ids_meaning(column)
    if isinstance(column, DenseColumn):
        return Meaning("numbers", column._output_names())
    return Meaning(type(column).__name__, ())


def code_meaning(column: PiecewiseLinearColumn) -> Meaning:
    """Return what the code of a piecewise-linear column stands for: edges, or bins."""
    entries: list[Hashable] = []
    for element, edges in enumerate(column.edges):
        ends = edges.tolist()
        if column.encoding == "hat":
            entries += [(element, end) for end in ends]
        else:
            bins = zip(ends, [*ends[1:], None], strict=True)
            entries += [(element, *ends_of_bin) for ends_of_bin in bins]
            if column.encoding == "ple":
                entries.pop()  # there is nothing above the last edge
    return Meaning((type(column).__name__, column.encoding), entries)


def ids_meaning(column: FeatureColumn) -> Meaning:
    """Return what the ids of a categorical column stand for."""
    while isinstance(column, OverCategorical):
        column = column.categorical
    if isinstance(column, VocabularyColumn):
        # Another number of buckets spreads values in another way.
        n_oov = column.num_oov_buckets
        oov = [("out of vocabulary", n_oov, i) for i in range(n_oov)]
        missing = [("missing",)] * column.missing_bucket
        return Meaning("vocabulary", [*column.vocabulary, *oov, *missing])
    if isinstance(column, IdentityColumn):
        return Meaning("identity", range(column.num_buckets))
    kind: tuple[Hashable, ...] = (type(column).__name__,)
    if isinstance(column, CrossedColumn):
        kind = (*kind, column.hash_key, *map(_key_meaning, _keys_of(column)))
    n_buckets = column.num_buckets
    return Meaning((*kind, n_buckets), range(n_buckets))


def _keys_of(column: CrossedColumn) -> Sequence[Any]:
    """Return what is crossed, as it was fitted."""
    return getattr(column, "keys_", column.keys)


def _key_meaning(key: Any) -> Hashable:
    """Return what tells a crossed key from others; its ids are hashed, so all count."""
    if not isinstance(key, CategoricalColumn):
        return key
    kind, entries = ids_meaning(key)
    return key.name, kind, entries if isinstance(entries, range) else tuple(entries)
