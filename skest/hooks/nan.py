# SPDX-License-Identifier: Apache-2.0
"""`NanLossHook`: ends a training whose loss is NaN, and tells what may have made it."""

import logging
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from skest.exceptions import NanLossDuringTrainingError
from skest.hooks.base import Hook, Run, nan_steps

_logger = logging.getLogger("skest")

_LOSSES_AT_ONCE = 10  # on devices that are to be waited for
_REASON = "the loss is NaN"


class NanLossHook(Hook):
    """Stops training when the loss is NaN, and tells what in the batch may be the cause.

    Parameters
    ----------
    fail_on_nan_loss : bool, default=True
        Raise an error; otherwise log it and stop. The state after it is not saved either
        way.

    Raises
    ------
    NanLossDuringTrainingError
        From the step whose loss is NaN, or on a GPU up to nine steps later: to look at a
        loss waits for the device, so ten are looked at together, and the others when
        something should be saved or training ends. The step that is named is the first.
        One with a number for its loss and NaN for its gradients is found when a
        checkpoint of it should be saved.

    Notes
    -----
    As ``tf.estimator.NanTensorHook``: an infinite loss passes.

    Examples
    --------
    >>> from skest.hooks import NanLossHook
    >>> hook = NanLossHook(fail_on_nan_loss=False)
    """

    def __init__(self, fail_on_nan_loss: bool = True) -> None:
        self._fails = fail_on_nan_loss

    def after_step(self, run: Run, loss: Any) -> None:
        """Look at the loss, or note it to look at several together."""
        # Computed already: to look at it waits for nothing.
        if loss.is_cpu:
            if math.isnan(loss.item()):
                self._tell(run, run.global_step, run.batch, run.n_taken)
            return
        # The batch is kept to be told about; ten batches on a GPU are little memory.
        run.unread_losses[run.global_step] = (loss, run.batch, run.n_taken)
        if len(run.unread_losses) >= _LOSSES_AT_ONCE:
            self._look(run)

    def end(self, run: Run) -> None:
        """Look at what is left."""
        if run.unread_losses and run.stop_reason != _REASON:
            self._look(run)

    def _look(self, run: Run) -> None:
        found = nan_steps(run.unread_losses)
        if not found:
            run.unread_losses.clear()
            return
        _, batch, n_taken = run.unread_losses[found[0]]
        # Losses stay unread: `Run.loss_is_nan` looks at them, so that nothing is saved.
        self._tell(run, found[0], batch, n_taken)

    def _tell(
        self, run: Run, step: int, batch: tuple[Any, Any] | None, n_taken: int
    ) -> None:
        message = f"The loss of step {step} is NaN."
        if batch is not None:
            raw, _ = run.raw_batch_of(n_taken) or (None, None)
            try:
                message += " " + report_on_batch(*batch, raw)
            except Exception as error:  # of cells of any kind; the loss matters more
                _logger.debug("There is no report on the batch: %s", error)
        if self._fails:
            raise NanLossDuringTrainingError(message)
        _logger.error(message)
        run.request_stop(_REASON)


_HUGE = 1e3  # of numbers that a network should get near one
_MOST_NAMED = 5


class _Column(NamedTuple):
    """The numbers of a column in a batch, one row after the other."""

    name: str
    values: Tensor  # of shape (n_rows,)

    @property
    def largest(self) -> float:
        return self.values.abs().max().item()


def report_on_batch(features: Any, labels: Any, raw: Any = None) -> str:
    """Name the columns whose numbers are NaN, infinite or huge, and say what helps.

    Parameters
    ----------
    features, labels : tensors, or dictionaries, tuples and lists of tensors
        An encoded batch. Integers are categories or classes, and are left aside.
    raw : mapping or DataFrame, default=None
        The features before encoding; other structures have no names to tell. Where
        `features` have not kept their names, the broken columns of it are told.

    Returns
    -------
    str
        Some sentences.

    Examples
    --------
    >>> import torch
    >>> from skest.hooks.nan import report_on_batch
    >>> nan = float("nan")
    >>> x = {"age": torch.tensor([30.0, nan]), "pay": torch.tensor([2e6, 3e6])}
    >>> print(report_on_batch(x, torch.tensor([0.0, 1.0])))
    Its batch has 1 NaN in column 'age' (first in row 1). Replace such values before they
    reach the network; a numeric_column does so with default_value.
    """
    inputs = list(_columns(features, "the features", "column"))
    targets = list(_columns(labels, "the labels", "label"))
    broken = _broken(inputs)
    if broken:
        # Encoded features are one matrix for arrays and DataFrames of plain numbers;
        # people know their columns by name.
        broken = _broken(_raw_columns(raw, features)) or broken
    broken += _broken(targets)
    # Labels, too: a huge target makes a huge loss.
    columns = [*inputs, *targets]
    if broken:
        return (
            f"Its batch has {_listed(broken)}. Replace such values before they reach the "
            "network; a numeric_column does so with default_value."
        )
    if not columns:
        return "Its batch has no floating-point numbers. " + _remedy([])
    # An overflow mostly begins with large inputs.
    columns.sort(key=lambda column: column.largest, reverse=True)
    largest = _listed([f"{c.largest:.3g} in {c.name}" for c in columns])
    return (
        "All numbers of its batch are finite; the largest magnitudes are "
        f"{largest}. {_remedy([c for c in columns if c.largest > _HUGE])}"
    )


def _remedy(huge: list[_Column]) -> str:
    advice = "lower the learning rate, or limit the gradients with clip_norm."
    if not huge:
        return advice.capitalize()
    names = _listed([column.name for column in huge])
    return f'Standardise {names} (normalizer="standard"), {advice}'


def _columns(data: Any, whole: str, kind: str) -> Iterator[_Column]:
    """Yield the floating-point columns in a nest of tensors, by name or position."""
    if isinstance(data, Mapping):
        for key, value in data.items():
            yield from _columns(value, f"{kind} {key!r}", kind)
    elif isinstance(data, tuple | list):
        for position, value in enumerate(data):
            yield from _columns(value, f"part {position} of {whole}", kind)
    elif isinstance(data, Tensor) and data.is_floating_point() and data.numel():
        values = data.detach().to_dense().reshape(len(data) if data.ndim else 1, -1)
        for position, column in enumerate(values.unbind(1)):
            single = values.shape[1] == 1
            name = whole if single else f"position {position} of {whole}"
            yield _Column(name, column)


def _raw_columns(raw: Any, features: Any) -> Iterator[_Column]:
    """Yield the floating-point columns of raw features whose names encoding has lost."""
    names = list(getattr(raw, "columns", raw if isinstance(raw, Mapping) else ()))
    if isinstance(features, Mapping) and not features.keys().isdisjoint(names):
        return
    for name in names:
        values = raw[name]
        if not isinstance(values, Tensor):
            values = np.asarray(values)
            if values.dtype.kind != "f":
                continue
            values = torch.from_numpy(values.astype(np.float64))
        yield from _columns(values, f"column {name!r}", "column")


def _broken(columns: Iterable[_Column]) -> list[str]:
    """Say what columns have that is no finite number."""
    found = []
    for name, values in columns:
        wrong = ~torch.isfinite(values)
        if wrong.any():
            n_nan = int(torch.isnan(values).sum())
            counts = [(n_nan, "NaN"), (int(wrong.sum()) - n_nan, "infinite")]
            text = " and ".join(f"{count} {what}" for count, what in counts if count)
            found.append(f"{text} in {name} (first in row {int(wrong.nonzero()[0])})")
    return found


def _listed(texts: list[str]) -> str:
    more = len(texts) - _MOST_NAMED
    return ", ".join(texts[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
