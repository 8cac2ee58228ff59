# SPDX-License-Identifier: Apache-2.0
"""`warm_start_from` of scikit-learn's estimators: what is known of a fitted source."""

import copy
import dataclasses
import re
from collections.abc import Iterable
from typing import Any

from sklearn.frozen import FrozenEstimator

from skest.adapters.meanings import (
    Axes,
    column_axes,
    inputs_meaning,
    logits_meaning,
    outputs_meaning,
)
from skest.adapters.parts import part_prefix
from skest.adapters.target_scale import TargetScale
from skest.exceptions import NotFittedError
from skest.feature_columns.base import FeatureColumn
from skest.feature_columns.bucketized import BucketizedColumn
from skest.feature_columns.columns import FeatureColumns
from skest.feature_columns.equality import same
from skest.feature_columns.nested import OverCategorical
from skest.feature_columns.numeric import NumericColumn
from skest.feature_columns.periodic import PeriodicColumn
from skest.feature_columns.piecewise import PiecewiseLinearColumn
from skest.vocab_info import VocabInfo
from skest.warm_start import (
    WarmStartFromFit,
    WarmStartSettings,
    as_warm_start_settings,
)
from skest.warm_start_plan import KnownChanges

__all__ = ["known_settings", "source_scale", "with_source_statistics"]

_ALL = ".*"
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
    fields["ckpt_to_initialize_from"] = source.estimator_
    return WarmStartFromFit(**fields, known_changes=_changes(estimator, source, given))


def source_scale(estimator: Any) -> TargetScale | None:
    """Return the scale of the target that a source's outputs are for, if there is one.

    It is that of a source which gives all variables, for the same kind of numbers.
    """
    source = _whole_source(estimator)
    if source is None or logits_meaning(source._target) != logits_meaning(
        estimator._target
    ):
        return None
    return source._scale


def with_source_statistics(
    estimator: Any, parameter: str, columns: FeatureColumns
) -> FeatureColumns:
    """Return fitted columns with the means, scales and boundaries of a source's.

    The weights of a source which gives all variables are for numbers as it saw them.
    Columns that are defined in another way now, or found gaps in other places, keep what
    they have learned.
    """
    before = getattr(_whole_source(estimator), f"{parameter}_", None)
    if before is None:
        return columns
    known = {column.name: column for column in before.active}
    columns = copy.copy(columns)
    columns.columns_ = [
        (name, known[column.name])
        if _is_measured(column) and _is_alike(column, known.get(column.name))
        else (name, column)
        for name, column in columns.columns_
    ]
    return columns


def _is_measured(column: FeatureColumn) -> bool:
    """Whether a column learns nothing but statistics of numbers."""
    while isinstance(column, OverCategorical):
        column = column.categorical
    return isinstance(
        column,
        NumericColumn | BucketizedColumn | PiecewiseLinearColumn | PeriodicColumn,
    )


def _is_alike(column: FeatureColumn, other: FeatureColumn | None) -> bool:
    if other is None or not same(column, other):
        return False
    # Edges found elsewhere are not other edges that are wanted.
    is_cut = isinstance(column, PiecewiseLinearColumn)
    return is_cut or outputs_meaning(column) == outputs_meaning(other)


def _whole_source(estimator: Any) -> Any:
    """Return the fitted source if all of its variables are wanted."""
    given = estimator.warm_start_from
    selected = getattr(given, "vars_to_warm_start", _ALL)
    return _fitted_source(given) if selected == _ALL else None


def _fitted_source(warm_start_from: Any) -> Any:
    """Return the scikit-learn estimator that is the source; None for another source."""
    source = warm_start_from
    if isinstance(source, WarmStartSettings):
        source = source.ckpt_to_initialize_from
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
