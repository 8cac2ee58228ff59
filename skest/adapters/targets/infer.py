# SPDX-License-Identifier: Apache-2.0
"""Which kind of target a column of ``y`` is."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from skest.adapters.targets.base import Target
from skest.adapters.targets.classes import ClassTarget
from skest.adapters.targets.forms import columns_of
from skest.adapters.targets.given import GivenTarget
from skest.adapters.targets.labels import LabelsTarget
from skest.adapters.targets.numbers import LOSSES, NumberTarget
from skest.adapters.targets.several import SeveralTargets
from skest.feature_columns.cells import holds_numbers, numbers
from skest.heads.multi_head import MultiHead
from skest.heads.single_task import SingleTaskHead

__all__ = ["KINDS", "given_targets", "infer_target", "several_targets"]

_CLASSES, _LABELS, _NUMBERS = "classification", "multilabel", "regression"
#: What a head may be called.
KINDS = (_CLASSES, _LABELS, _NUMBERS, *(set(LOSSES) - {"quantile"}))
# Whole numbers with more different values than this are numbers, not classes.
_MOST_CLASSES = 20


def infer_target(values: Any, owner: str) -> Target:
    """Return a target for values that may have gaps, of which no kind is said.

    Strings, categories and booleans are classes, and so are whole numbers of at most 20
    different values; a matrix of zeros and ones is several labels; the rest is numbers.
    """
    if np.ndim(values) == 2:
        known = numbers(np.asarray(values), "y")
        known = known[~np.isnan(known)] if known.dtype.kind == "f" else known
        return make_target(_LABELS if np.isin(known, (0, 1)).all() else _NUMBERS, owner)
    values = values if isinstance(values, pd.Series) else np.asarray(values)
    if values.dtype.kind in "mM":
        raise ValueError(
            f"{owner} cannot predict dates or durations (dtype {values.dtype}). Make "
            "numbers or categories of them."
        )
    if not holds_numbers(values):
        return make_target(_CLASSES, owner)
    distinct = pd.unique(numbers(values, "y"))
    distinct = distinct[~pd.isna(distinct)]
    few = len(distinct) <= _MOST_CLASSES and (distinct % 1 == 0).all()
    return make_target(_CLASSES if few else _NUMBERS, owner)


def make_target(kind: Any, owner: str) -> Target:
    """Return the target of a kind, or of a head."""
    if isinstance(kind, SingleTaskHead):
        return GivenTarget(owner, kind)
    if kind == _CLASSES:
        return ClassTarget(owner)
    if kind == _LABELS:
        return LabelsTarget(owner)
    if kind == _NUMBERS:
        return NumberTarget(owner)
    if kind in KINDS:
        return NumberTarget(owner, loss=kind)
    raise ValueError(
        f"A head of {owner} must be one of {', '.join(map(repr, sorted(KINDS)))} or a "
        f"head for one target of skest.heads; got {kind!r}."
    )


def several_targets(
    y: Any, heads: Any, head_weights: Any, owner: str
) -> SeveralTargets:
    """Return the targets of `y` for the parameters of `MultiHeadEstimator`."""
    found = columns_of(y)
    if isinstance(heads, str) and heads == "auto":
        kinds: dict[Any, Any] = dict.fromkeys(found)
    else:
        kinds = _kinds_by_name(heads, found, owner)
    columns: dict[str, list[Any]] = {}
    targets: dict[str, Target] = {}
    for label, entry in kinds.items():
        name, (kind, some) = str(label), _kind_and_columns(label, entry, owner)
        _check_columns(name, some, columns, found, owner)
        columns[name] = some
        targets[name] = (
            infer_target(found[label], owner)
            if kind is None
            else make_target(kind, owner)
        )
    weights = _weights_by_name(head_weights, targets, owner)
    return SeveralTargets(owner, targets, columns, weights)


def _kind_and_columns(label: Any, entry: Any, owner: str) -> tuple[Any, list[Any]]:
    """Take an entry of 'heads' apart."""
    # A label of a column of pandas may be a tuple; an entry that is one is a pair.
    if not isinstance(entry, tuple):
        return entry, [label]
    if len(entry) != 2 or isinstance(entry[1], str) or not len(entry[1]):
        raise ValueError(
            f"An entry of 'heads' of {owner} that is a tuple must be a pair of a kind and "
            f"a list of columns, as ('multilabel', ['a', 'b']); got {entry!r}."
        )
    return entry[0], list(entry[1])


def _check_columns(
    name: str,
    some: list[Any],
    columns: Mapping[str, list[Any]],
    found: Mapping[Any, Any],
    owner: str,
) -> None:
    """Refuse a head of a name that is taken, or of columns that are taken or lacking."""
    if name in columns:
        raise ValueError(
            f"Two heads of {owner} have the name {name!r}. Rename a column of y, or give "
            "'heads' other names."
        )
    unknown = [column for column in some if column not in found]
    if unknown:
        raise ValueError(
            f"'heads' of {owner} names {', '.join(map(repr, unknown))}, but y has "
            f"{', '.join(map(repr, found))}."
        )
    taken = [column for other in columns.values() for column in other if column in some]
    if taken:
        raise ValueError(
            f"'heads' of {owner} names the column {taken[0]!r} of y twice. Copy the "
            "column under another name."
        )


def given_targets(owner: str, head: MultiHead) -> SeveralTargets:
    """Return the targets of the heads of a `MultiHead`."""
    names = [str(part.name) for part in head.heads]
    return SeveralTargets(
        owner,
        {
            n: GivenTarget(owner, part)
            for n, part in zip(names, head.heads, strict=True)
        },
        {name: [name] for name in names},
        _weights_by_name(head.head_weights, names, owner),
    )


def _kinds_by_name(heads: Any, found: Mapping[Any, Any], owner: str) -> dict[Any, Any]:
    if isinstance(heads, Mapping):
        if not heads:
            raise ValueError(f"'heads' of {owner} is empty; it needs a head.")
        return dict(heads)
    if isinstance(heads, str) or not isinstance(heads, Sequence):
        raise ValueError(
            f"'heads' of {owner} must be \"auto\", a list with a head for each column of "
            f"y, or a dictionary of heads by name; got {heads!r}."
        )
    if len(heads) != len(found):
        raise ValueError(
            f"'heads' of {owner} has {len(heads)} entries for {len(found)} columns of y. "
            "Give one for each, or a dictionary for some."
        )
    return dict(zip(found, heads, strict=True))


def _weights_by_name(
    weights: Any, names: Iterable[str], owner: str
) -> dict[str, float] | None:
    """Return 'head_weights' by name; those of a dictionary that lack are 1."""
    names = list(names)
    if weights is None:
        return None
    if isinstance(weights, Mapping):
        unknown = [name for name in weights if str(name) not in names]
        if unknown:
            raise ValueError(
                f"'head_weights' of {owner} names {', '.join(map(repr, unknown))}; the "
                f"heads are {', '.join(map(repr, names))}."
            )
        given = {str(name): weight for name, weight in weights.items()}
        weights = [given.get(name, 1.0) for name in names]
    weights = list(weights)
    if len(weights) != len(names):
        raise ValueError(
            f"'head_weights' of {owner} must have a number for each of the {len(names)} "
            f"heads; got {len(weights)}."
        )
    if not any(weights):
        raise ValueError(
            f"'head_weights' of {owner} are all 0, so nothing would be learned."
        )
    return dict(zip(names, weights, strict=True))
