# SPDX-License-Identifier: Apache-2.0
"""`warm_start_from` of scikit-learn's estimators: what is known of a fitted source."""

import copy
import dataclasses
import re
from collections.abc import Hashable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from sklearn.frozen import FrozenEstimator
from torch import Tensor

from skest.adapters.targets.base import Target, TargetScale
from skest.canned.optimization import part_prefix, table_scope
from skest.checkpoints.vocab_info import VocabInfo
from skest.checkpoints.warm_start import (
    KnownChanges,
    WarmStartFromFit,
    WarmStartSettings,
    as_warm_start_settings,
)
from skest.exceptions import NotFittedError
from skest.feature_columns.base import (
    CategoricalColumn,
    DenseColumn,
    FeatureColumn,
    OverCategorical,
    innermost,
)
from skest.feature_columns.bucketized import BucketizedColumn
from skest.feature_columns.categorical import IdentityColumn
from skest.feature_columns.columns import FeatureColumns, same
from skest.feature_columns.crossed import CrossedColumn
from skest.feature_columns.dense import EmbeddingColumn
from skest.feature_columns.joined import JoinedCategoricalColumn
from skest.feature_columns.modules import module_name, parameter_name
from skest.feature_columns.numeric import NumericColumn
from skest.feature_columns.numeric_vectors import (
    PARAMETERS,
    PeriodicColumn,
    PiecewiseLinearColumn,
)
from skest.feature_columns.vocabulary import VocabularyColumn


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
    >>> from skest.adapters.warm_source import Meaning
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
        # Ids of a hash and of a vocabulary have nothing in common: all entries are new.
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
    scope = table_scope(parameter, kind)
    for column in columns.active:
        if isinstance(column, EmbeddingColumn):
            axes[scope + parameter_name(column.table_name)] = {
                0: ids_meaning(column),
                1: outputs_meaning(column),
            }
        elif isinstance(column, PeriodicColumn):
            # Waves have no names by which another number of them could be told apart:
            # no axis has a meaning, and other shapes are refused.
            module = scope + module_name(column.name)
            axes |= {f"{module}.{name}": {} for name in PARAMETERS}
        is_piecewise = isinstance(column, PiecewiseLinearColumn)
        # A linear model has weights for the code itself and no table of dimensions.
        if is_piecewise and column.dimension and kind != "linear":
            axes[scope + parameter_name(column.name)] = {
                0: code_meaning(column),
                1: Meaning("dimension", range(column.dimension)),
            }
        if kind == "linear":
            rows = code_meaning(column) if is_piecewise else outputs_meaning(column)
            axes[part_prefix(parameter) + parameter_name(column.name)] = {
                0: rows,
                1: logits,
            }
    return axes


def logits_meaning(target: Target) -> Meaning:
    """Return what the logits stand for: classes, labels or numbers."""
    return Meaning("logits", _logits_of(target))


def _logits_of(target: Any) -> list[Hashable]:
    # Of several heads, in the order in which their logits lie in the network.
    if hasattr(target, "targets"):
        return [
            (name, logit)
            for name, single in target.targets.items()
            for logit in _logits_of(single)
        ]
    # The class of the head, too: a logit of another loss is another number.
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
        # The order in which a network joins them, as `_normalize_feature_columns` of
        # TensorFlow has it.
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
        names, each = column.source._element_names, range(column.dimension)
        return Meaning("dimensions", [(name, i) for name in names for i in each])
    if isinstance(column, OverCategorical | CategoricalColumn):
        return ids_meaning(column)
    if isinstance(column, DenseColumn):
        # By names, not by positions: an indicator of gaps that is new must not move the
        # others.
        return Meaning("numbers", column._output_names())
    return Meaning(type(column).__name__, ())


def code_meaning(column: PiecewiseLinearColumn) -> Meaning:
    """Return what the code of a piecewise-linear column stands for: edges, or bins."""
    entries: list[Hashable] = []
    names = column.source._element_names
    for element, edges in zip(names, column.edges, strict=True):
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
    if isinstance(column, JoinedCategoricalColumn):
        found = [(own.key, *ids_meaning(own)) for own in column.categoricals]
        entries = [(key, kind, entry) for key, kind, own in found for entry in own]
        return Meaning("joined", entries)
    # Without the number of buckets in the kind: more ids leave the first ones what they
    # are.
    if isinstance(column, IdentityColumn):
        return Meaning("identity", range(column.num_buckets))
    kind: tuple[Hashable, ...] = (type(column).__name__,)
    if isinstance(column, CrossedColumn):
        keys = getattr(column, "keys_", column.keys)  # as it was fitted
        kind = (*kind, column.hash_key, *map(_key_meaning, keys))
    # Ids that are hashed, or counted, go by their number: with another, all of them are
    # new.
    n_buckets = column.num_buckets
    return Meaning((*kind, n_buckets), range(n_buckets))


def _key_meaning(key: Any) -> Hashable:
    """Return what tells a crossed key from others; its ids are hashed, so all count."""
    if not isinstance(key, CategoricalColumn):
        return key
    kind, entries = ids_meaning(key)
    return key.name, kind, entries if isinstance(entries, range) else tuple(entries)


_ALL = ".*"
# What numeric and piecewise-linear columns learn of each of their numbers.
_OF_ELEMENTS = {"fill_", "center_", "scale_", "limit_", "edges_"}
# The input weights of the first layer, whichever cells it has: torch names them so.
_RNN_INPUTS = re.compile(r"\w+_0\.weight_ih_l0")


def known_settings(estimator: Any) -> WarmStartSettings | None:
    """Return the settings of a warm start, with what changed since the source's fit.

    Parameters
    ----------
    estimator : SkestEstimator
        Whose feature columns and target have learned from the new data.

    Returns
    -------
    WarmStartSettings or None
        If the source is a fitted estimator, with a VocabInfo for each variable whose
        rows or columns stand for something else now.

    Raises
    ------
    TypeError
        If `warm_start_from` is nothing to start from.
    NotFittedError
        If it is an estimator that is not fitted.
    """
    given = estimator.warm_start_from
    source = _fitted_source(given)
    if source is None:
        return as_warm_start_settings(given)
    if not isinstance(given, WarmStartSettings):
        given = WarmStartSettings(source)
    fields = {f.name: getattr(given, f.name) for f in dataclasses.fields(given)}
    # Its core has the variables; what they stand for, only the estimator around it
    # knows.
    fields["ckpt_to_initialize_from"] = source.estimator_
    return WarmStartFromFit(**fields, known_changes=_changes(estimator, source, given))


def source_scale(estimator: Any) -> TargetScale | None:
    """Return the scale of the target that a source's outputs are for, if there is one.

    It is that of a source which gives all variables, for the same kind of numbers; of
    other classes, each that both have keeps its center.
    """
    source = whole_source(estimator)
    if source is None:
        return None
    before, now = _logits_of(source._target), _logits_of(estimator._target)
    scale = source._scale
    if before == now or scale is None:
        return scale
    if not hasattr(source._target, "classes") or not set(before) & set(now):
        return None
    centers = dict(zip(before, scale.center, strict=True))
    # A class that the source has not seen is rare.
    center = [centers.get(logit, scale.center.min()) for logit in now]
    return TargetScale.none(len(now))._replace(center=np.array(center))


def with_source_statistics(
    estimator: Any, parameter: str, columns: FeatureColumns
) -> FeatureColumns:
    """Return fitted columns with the means, scales and boundaries of a source's.

    The weights of a source which gives all variables are for numbers as it saw them.
    Columns that are defined in another way now, or found gaps in other places, keep what
    they have learned. Of the numbers of a table, some may be new, or gone.
    """
    before = getattr(whole_source(estimator), f"{parameter}_", None)
    if before is None:
        return columns
    known = {column.name: column for column in before.active}
    columns = copy.copy(columns)
    columns.columns_ = [
        (name, _with_statistics(column, known.get(column.name)))
        if _is_measured(column)
        else (name, column)
        for name, column in columns.columns_
    ]
    return columns


def _with_statistics(
    column: FeatureColumn, known: FeatureColumn | None
) -> FeatureColumn:
    if known is None or _is_alike(column, known):
        return known or column
    sources = (getattr(c, "source", c) for c in (column, known))
    of, before = (getattr(source, "feature_names", None) for source in sources)
    if of is None or before is None or type(column) is not type(known):
        return column
    places = {name: place for place, name in enumerate(before)}
    column = copy.copy(column)
    for learned in _OF_ELEMENTS & vars(column).keys() & vars(known).keys():
        own, theirs = copy.copy(getattr(column, learned)), getattr(known, learned)
        for i, name in enumerate(of):
            if name in places:
                own[i] = theirs[places[name]]
        setattr(column, learned, own)
    return column


def _is_measured(column: FeatureColumn) -> bool:
    """Whether a column learns nothing but statistics of numbers."""
    measured = NumericColumn | BucketizedColumn | PiecewiseLinearColumn | PeriodicColumn
    return isinstance(innermost(column), measured)


def _is_alike(column: FeatureColumn, other: FeatureColumn | None) -> bool:
    if other is None or not same(column, other):
        return False
    # Edges found elsewhere are not other edges that are wanted.
    is_cut = isinstance(column, PiecewiseLinearColumn)
    return is_cut or outputs_meaning(column) == outputs_meaning(other)


def whole_source(estimator: Any) -> Any:
    """Return the fitted source if all of its variables are wanted."""
    # Of a part of the variables, the others would see numbers in a scale that is not
    # theirs.
    given = estimator.warm_start_from
    selected = getattr(given, "vars_to_warm_start", _ALL)
    return _fitted_source(given) if selected == _ALL else None


def _fitted_source(warm_start_from: Any) -> Any:
    """Return the scikit-learn estimator that is the source; None for another source."""
    source = warm_start_from
    if isinstance(source, WarmStartSettings):
        source = source.ckpt_to_initialize_from
    # clone leaves a FrozenEstimator fitted, so that searches can hand one on.
    if isinstance(source, FrozenEstimator):
        source = source.estimator
    if not hasattr(source, "_column_parameters"):
        return None
    if not source.__sklearn_is_fitted__():
        raise NotFittedError(
            f"'warm_start_from' is a {type(source).__name__} that is not fitted. Call its "
            "fit first; a search, which clones its candidates, needs "
            "WarmStartSettings(estimator) or FrozenEstimator(estimator)."
        )
    return source


def _changes(estimator: Any, source: Any, settings: WarmStartSettings) -> KnownChanges:
    """Compare what the variables of two fits stand for."""
    names = source.estimator_.checkpoint.variables.keys()
    previous = settings.var_name_to_prev_var_name or {}
    before, now = _axes(source, names), _axes(estimator, names)
    infos: dict[str, list[VocabInfo]] = {}
    for name, axes in now.items():
        old = before.get(previous.get(name, name), {})
        changed = [
            meaning.since(old[axis], axis)
            for axis, meaning in axes.items()
            if axis in old
        ]
        if any(changed):
            infos[name] = [info for info in changed if info is not None]
    # The report says so of them.
    new = {name: "a new column" for name in now.keys() - before.keys()}
    return KnownChanges(infos, new)


def _axes(fitted: Any, names: Iterable[str]) -> Axes:
    """Return what the variables of an estimator stand for.

    `names` are variables of the source, which tell the first layer of a network: the
    other one is the same.
    """
    logits = logits_meaning(fitted._target)
    axes: Axes = {"bias": {0: logits}}
    inputs = []
    for parameter, kind in fitted._column_parameters.items():
        columns, part = getattr(fitted, f"{parameter}_"), part_prefix(parameter)
        if columns is None:
            continue
        axes |= column_axes(columns, parameter, kind, logits)
        if kind == "linear":
            axes[f"{part}bias"] = {0: logits}
        elif kind == "dense":
            axes |= _layers(part, logits, names)
            first = f"{part}hidden_0.weight"
            # Without hidden layers, the inputs are those of the last one.
            first = first if first in names else f"{part}logits.weight"
            for name in (first, f"{part}member_scales"):
                axes.setdefault(name, {})[1] = inputs_meaning([columns])
        else:
            axes |= _layers("", logits, names)
            inputs.append(columns)
    for name in names if inputs else ():
        if _RNN_INPUTS.fullmatch(name):
            axes[name] = {1: inputs_meaning(inputs)}
    if hasattr(fitted, "model_fn"):
        return _by_last_name(axes, names)
    return axes


def _layers(part: str, logits: Any, names: Iterable[str]) -> Axes:
    axis = 2 if f"{part}member_scales" in names else 0  # a last layer of each member
    return {
        name: {axis: logits}
        for name in (f"{part}logits.weight", f"{part}logits.bias")
        if name in names
    }


def _by_last_name(axes: Axes, names: Iterable[str]) -> Axes:
    """Return the meanings for a network of the user's, whose layers may have any names."""
    tables = {name.rpartition(".")[2]: of for name, of in axes.items()}
    return {
        name: tables[name.rpartition(".")[2]]
        for name in names
        if name.endswith("_weights") and name.rpartition(".")[2] in tables
    }
