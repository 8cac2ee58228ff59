# SPDX-License-Identifier: Apache-2.0
"""`SummaryWriter`: writes the summaries of a run for TensorBoard."""

import importlib
import importlib.util
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from skest.summaries.graph import Node

__all__ = ["MISSING_TENSORBOARD", "SummaryWriter", "tensorboard_is_installed"]

MISSING_TENSORBOARD = (
    "summaries need tensorboard. Install it with: pip install tensorboard"
)

_logger = logging.getLogger("skest")


def tensorboard_is_installed() -> bool:
    """Tell whether there is a package to write event files with."""
    return importlib.util.find_spec("tensorboard") is not None


class SummaryWriter:
    """Writes summaries into an event file of a directory.

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
        self._file: Any = None
        self._written: dict[str, int] = {}
        self._has_graph = False
        self._is_enabled = directory is not None and tensorboard_is_installed()

    @property
    def is_enabled(self) -> bool:
        """Whether anything is written; values that cost time need not be made if not."""
        return self._is_enabled

    @property
    def wants_graph(self) -> bool:
        """Whether the graph can be written and is not written yet."""
        return self._is_enabled and not self._has_graph

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

    def scalars(
        self, values: Mapping[str, float | Tensor], step: int | None = None
    ) -> None:
        """Write numbers at the present step or another one, as `scalar` does."""
        step = self._step() if step is None else step
        fresh = self._fresh(values, step)
        if fresh:
            to_value = _events().scalar_value
            self._values(
                [to_value(name, _number(v)) for name, v in fresh.items()], step
            )

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
        numbers = {name: _finite(v) for name, v in self._fresh(values, step).items()}
        numbers = {name: v for name, v in numbers.items() if v.size}
        if numbers:
            to_value = _events().histogram_value
            self._values([to_value(name, v) for name, v in numbers.items()], step)

    def graph(self, nodes: Sequence[Node]) -> None:
        """Write the graph of a network, see `skest.summaries.graph.record_graph`."""
        self._has_graph = True
        self._try(lambda file: file.graph(nodes))

    def hparams(self, values: Mapping[str, float | bool | str]) -> None:
        """Write the hyperparameters of the training, a row of the page "HParams".

        Parameters
        ----------
        values : dict of str to float, bool or str
            The columns of the row.
        """
        if self.is_enabled:
            self._values([_events().hparams_value(values)], self._step())

    def success(self) -> None:
        """Write that the training of `hparams` has ended well."""
        if self.is_enabled:
            self._values([_events().success_value()], self._step())

    def close(self) -> None:
        """Close the file, if there is one."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _fresh(self, values: Mapping[str, Any], step: int) -> dict[str, Any]:
        """Return what has not been written at a step, and note that it is now."""
        if not self.is_enabled:
            return {}
        fresh = {n: v for n, v in values.items() if self._written.get(n) != step}
        self._written |= dict.fromkeys(fresh, step)
        return fresh

    def _values(self, values: Sequence[Any], step: int) -> None:
        self._try(lambda file: file.values(values, step))

    def _try(self, write: Callable[[Any], None]) -> None:
        """Write, if that is possible."""
        if not self.is_enabled:
            return
        try:
            if self._file is None:
                self._file = _events().EventFile(self._directory, self._first_step)
            write(self._file)
        except OSError as error:
            _logger.warning(
                "No summaries are written to %s: %s", self._directory, error
            )
            self.close()
            self._is_enabled = False


def _events() -> ModuleType:
    """Return the module that needs tensorboard."""
    return importlib.import_module("skest.summaries.events")


def _number(value: float | Tensor) -> float:
    return value.item() if isinstance(value, Tensor) else float(value)


def _finite(values: Any) -> Any:
    if isinstance(values, Tensor):
        # NumPy has no bfloat16, and no sparse arrays.
        values = values.detach()
        values = values.coalesce().values() if values.is_sparse else values
        values = values.to("cpu", torch.float64).numpy()
    values = np.asarray(values, dtype=np.float64).ravel()
    return values[np.isfinite(values)]
