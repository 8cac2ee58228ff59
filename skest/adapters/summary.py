# SPDX-License-Identifier: Apache-2.0
"""What a person is told of a fitted estimator: as text, and in a notebook."""

from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

import numpy as np

from skest.checkpoints.checkpoint import layers_of
from skest.core.console import TitledTable, html_table
from skest.feature_columns.describe import describe

_MOST_CLASSES = 5
# As many as pandas shows of a table. A notebook, where a table is folded, has all.
_MOST_ROWS = 60


def summary_text(model: Any) -> str:
    """Return the summary of a fitted estimator as text."""
    blocks = [f"{type(model).__name__}: {_target(model)}", _training(model)]
    return "\n".join([*blocks, *(f"\n{_cut(part)}" for part in _parts(model))])


def summary_html(model: Any) -> str:
    """Return the summary of a fitted estimator as HTML, for below its diagram."""
    tables = (html_table(*part) for part in _parts(model))
    said = f"{escape(_target(model))}<br>{_training(model)}"
    return f'<div style="font-family: monospace">{said}</div>{"".join(tables)}'


def chosen_table(title: str, reasons: Mapping[str, tuple[Any, str]]) -> TitledTable:
    """Return what was chosen for parameters, and why."""
    rows = [(name, _short(value), why) for name, (value, why) in reasons.items()]
    return TitledTable(title, ("parameter", "value", "why"), rows)


def _cut(part: TitledTable) -> str:
    """Return a table as text, without what would flood a terminal."""
    text = part._replace(rows=part.rows[:_MOST_ROWS]).text()
    n_more = len(part.rows) - _MOST_ROWS
    return (
        f"{text}\n… and {n_more:,} more; a notebook shows all" if n_more > 0 else text
    )


def _target(model: Any) -> str:
    classes = getattr(model, "classes_", None)
    if isinstance(classes, list):
        return f"{len(classes)} targets"
    if classes is None:
        return f"predicts {_count(model._n_logits, 'number')}"
    names = ", ".join(map(str, classes[:_MOST_CLASSES]))
    more = ", …" if len(classes) > _MOST_CLASSES else ""
    return f"{len(classes):,} classes ({names}{more})"


def _training(model: Any) -> str:
    said = f"{_count(model.n_iter_, 'epoch')}, {_count(model.n_steps_, 'step')}"
    # A training of no step has none, as one whose `max_steps` are reached already.
    if np.isfinite(model.loss_):
        said += f", loss {model.loss_:.4g}"
    if model.best_validation_score_ is not None:
        loss = model._target.validation_loss(model.best_validation_score_)
        said += f"; the best validation loss was {loss:.4g}"
    if model.fold_estimators_:
        n = len(model.fold_estimators_)
        said += f"; predicts the mean of this network and those of {n} folds"
    return said


def _parts(model: Any) -> Iterator[TitledTable]:
    # The choices first: mostly they are what a person wonders about.
    reasons = model._reasons()
    if reasons:
        yield chosen_table('What "auto" chose', reasons)
    for parameter in model._column_parameters:
        columns = getattr(model, f"{parameter}_")
        if columns is not None:
            described = describe(columns.active)
            title = f"{parameter}_: {_count(len(described), 'column')}"
            # By what they read: a column's own name says little more than its kind.
            rows = [(d.reads, d.kind, d.size, d.learned) for d in described]
            yield TitledTable(title, ("column", "kind", "size", "learned"), rows)
    # Of no step trained there is none, and no layer to tell of.
    checkpoint = model.estimator_.checkpoint
    if checkpoint is not None:
        yield layers_of(checkpoint)


def _count(n: int, what: str) -> str:
    return f"{n:,} {what}{'s' * (n != 1)}"


def _short(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
