# SPDX-License-Identifier: Apache-2.0
"""`SummaryWriter`: writes the summaries of a run for TensorBoard."""

import importlib.util
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

MISSING_TENSORBOARD = (
    "summaries need tensorboard. Install it with: pip install tensorboard"
)

_logger = logging.getLogger("skest")


def tensorboard_is_installed() -> bool:
    """Tell whether there is a package to write event files with."""
    return importlib.util.find_spec("tensorboard") is not None


class SummaryWriter:
    """Writes summaries into an event file of a directory, by torch's writer.

    Hooks find one at ``run.summary``. It may be used without looking whether there is a
    directory and the package tensorboard: where one is missing, nothing is written. The
    file is made with the first value. A value of the same name and step is written once.
    If a value can't be written, as on a full disk, that is logged and training goes on.

    Parameters
    ----------
    directory : Path or None
        Where the file is made; None writes nothing.
    step : callable
        Returns the present global step, that of every value.
    first_step : int, default=None
        What earlier files have from this step on is from a run that this one replaces:
        TensorBoard forgets it. None lets it forget nothing.

    Attributes
    ----------
    is_enabled : bool
        Whether anything is written; values that cost time need not be made if not.

    Examples
    --------
    >>> from skest.hooks import Hook
    >>> class WeightNorm(Hook):
    ...     def after_step(self, run, loss):
    ...         if run.global_step % 100 == 0:
    ...             weights = [p.detach().norm() for p in run.network.parameters()]
    ...             run.summary.scalar("norm_of_weights", sum(weights))
    """

    def __init__(
        self,
        directory: Path | None,
        step: Callable[[], int],
        first_step: int | None = None,
    ) -> None:
        self._directory = directory
        self._step = step
        self._first_step = first_step
        self._file: Any = None  # a torch.utils.tensorboard.SummaryWriter
        self._written: dict[str, int] = {}
        # tensorboard is an extra: a training without it must not fail at its first
        # summary.
        self.is_enabled = directory is not None and tensorboard_is_installed()

    def scalar(self, name: str, value: float | Tensor) -> None:
        """Write a number at the present step.

        Parameters
        ----------
        name : str
            Its tag; what stands before a slash groups the charts.
        value : float or Tensor of shape ()
            Reading a tensor waits for its device.
        """
        self.scalars({name: value})

    def scalars(self, values: Mapping[str, float | Tensor]) -> None:
        """Write numbers at the present step, as `scalar` does."""
        step = self._step()
        for name, value in self._fresh(values, step).items():
            number = value.item() if isinstance(value, Tensor) else float(value)
            self._try("add_scalar", name, number, step)

    def histogram(self, name: str, values: Any) -> None:
        """Write the distribution of numbers at the present step.

        Parameters
        ----------
        name : str
            Its tag.
        values : Tensor or array
            Numbers of any shape. NaN and infinities are left out; if nothing is left,
            nothing is written.
        """
        self.histograms({name: values})

    def histograms(self, values: Mapping[str, Any]) -> None:
        """Write distributions at the present step, as `histogram` does."""
        step = self._step()
        for name, value in self._fresh(values, step).items():
            numbers = _finite(value)
            if numbers.size:
                self._try("add_histogram", name, numbers, step)

    def close(self) -> None:
        """Write what is not written yet, and close the file if there is one."""
        if self._file is not None:
            self._try("close")
            self._file = None

    def _fresh(self, values: Mapping[str, Any], step: int) -> dict[str, Any]:
        """Return what has not been written at a step, and note that it is now."""
        if not self.is_enabled:
            return {}
        # Two hooks may write one value at one step, and TensorBoard would draw both.
        fresh = {n: v for n, v in values.items() if self._written.get(n) != step}
        self._written |= dict.fromkeys(fresh, step)
        return fresh

    def _try(self, name: str, *arguments: Any) -> None:
        """Call a method of the file, if it can be written."""
        if not self.is_enabled:
            return
        try:
            if self._file is None:
                # Imported where it is used: it takes a second, and tensorboard.
                from torch.utils.tensorboard import SummaryWriter as EventFile

                self._file = EventFile(self._directory, purge_step=self._first_step)
            getattr(self._file, name)(*arguments)
        except OSError as error:
            # Hours of training must not end for a full disk of pictures.
            _logger.warning(
                "No summaries are written to %s: %s", self._directory, error
            )
            # For good: it would be logged at every step.
            self._file, self.is_enabled = None, False


def _finite(values: Any) -> Any:
    if isinstance(values, Tensor):
        # NumPy has no bfloat16, and no sparse arrays.
        values = values.detach()
        values = values.coalesce().values() if values.is_sparse else values
        values = values.to("cpu", torch.float64).numpy()
    values = np.asarray(values, dtype=np.float64).ravel()
    return values[np.isfinite(values)]
