# SPDX-License-Identifier: Apache-2.0
"""What a person is told of a fitted estimator: as text, and in a notebook."""

from collections.abc import Iterator, Sequence
from html import escape
from typing import Any, NamedTuple

import numpy as np

from skest.checkpoints.checkpoint import Checkpoint
from skest.feature_columns.describe import (
    Description,
    describe,
    html_table,
    text_table,
)

_MOST_CLASSES = 5
_MOST_SHAPES = 3


class Part(NamedTuple):
    """A table of the summary."""

    title: str
    head: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]

    def text(self) -> str:
        """Return it as text."""
        return f"{self.title}\n{text_table([self.head, *self.rows])}"


def summary_text(model: Any) -> str:
    """Return the summary of a fitted estimator as text."""
    blocks = [f"{type(model).__name__}: {_target(model)}", _training(model)]
    return "\n".join([*blocks, *(f"\n{part.text()}" for part in _parts(model))])


def summary_html(model: Any) -> str:
    """Return the summary of a fitted estimator as HTML, for below its diagram."""
    tables = (html_table(*part) for part in _parts(model))
    said = f"{escape(_target(model))}<br>{_training(model)}"
    return f'<div style="font-family: monospace">{said}</div>{"".join(tables)}'


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
    if np.isfinite(model.loss_):
        said += f", loss {model.loss_:.4g}"
    if model.best_validation_score_ is not None:
        loss = model._target.validation_loss(model.best_validation_score_)
        said += f"; the best validation loss was {loss:.4g}"
    return said


def _parts(model: Any) -> Iterator[Part]:
    rows = [(n, _short(v), why) for n, (v, why) in model._reasons().items()]
    if rows:
        yield Part('What "auto" chose', ("parameter", "value", "why"), rows)
    for parameter in model._column_parameters:
        columns = getattr(model, f"{parameter}_")
        if columns is not None:
            described: list[Any] = describe(columns.active)
            title = f"{parameter}_: {_count(len(described), 'column')}"
            yield Part(title, Description._fields, described)
    checkpoint = model.estimator_.checkpoint
    if checkpoint is not None:
        yield layers_of(checkpoint)


def layers_of(checkpoint: Checkpoint) -> Part:
    """Return a line about each module that has variables of its own."""
    modules: dict[str, list[Any]] = {}
    for name, variable in checkpoint.variables.items():
        modules.setdefault(name.rpartition(".")[0], []).append(variable)
    rows = []
    for name, tensors in modules.items():
        shapes = [" x ".join(map(str, v.shape)) or "1" for v in tensors]
        if len(shapes) > _MOST_SHAPES:
            shapes = [f"{len(shapes)} tensors"]
        n_values = sum(v.numel() for v in tensors)
        rows.append((name or "(itself)", ", ".join(shapes), f"{n_values:,}"))
    n_values = sum(v.numel() for v in checkpoint.variables.values())
    title = (
        f"Layers: {_count(n_values, 'parameter')}, {_memory(checkpoint.variables)}, and "
        f"{_memory(checkpoint.optimizer)} of the optimizer"
    )
    return Part(title, ("layer", "shapes", "parameters"), rows)


def _memory(tensors: Any) -> str:
    size = float(sum(v.numel() * v.element_size() for v in tensors.values()))
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.3g} {unit}"
        size /= 1024
    return f"{size:.3g} GiB"


def _count(n: int, what: str) -> str:
    return f"{n:,} {what}{'s' * (n != 1)}"


def _short(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
