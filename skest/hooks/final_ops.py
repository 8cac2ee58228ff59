# SPDX-License-Identifier: Apache-2.0
"""`FinalOpsHook`."""

from collections.abc import Callable, Mapping
from typing import Any

from skest.hooks.base import Hook, Run

__all__ = ["FinalOpsHook"]


class FinalOpsHook(Hook):
    """Computes something once, after the last step.

    Parameters
    ----------
    final_ops : callable or dict of str to callable
        Each is called with the `Run`, whose network and metrics are still there.

    Attributes
    ----------
    final_ops_values : object or dict of str to object
        What they returned; None before the end of a run.

    Raises
    ------
    TypeError
        If `final_ops` holds something that is no function.

    Notes
    -----
    As ``tf.estimator.FinalOpsHook``.

    Examples
    --------
    >>> from skest.hooks import FinalOpsHook
    >>> def weight_norm(run):
    ...     return sum(float(p.square().sum()) for p in run.network.parameters()) ** 0.5
    >>> hook = FinalOpsHook({"weight_norm": weight_norm})
    """

    def __init__(
        self,
        final_ops: Callable[[Run], Any] | Mapping[str, Callable[[Run], Any]],
    ) -> None:
        functions = (
            final_ops.values() if isinstance(final_ops, Mapping) else [final_ops]
        )
        for function in functions:
            if not callable(function):
                raise TypeError(
                    "'final_ops' must be a function of the run, or a dictionary of such "
                    f"functions; got {function!r}."
                )
        self._final_ops = final_ops
        self.final_ops_values: Any = None

    def begin(self, run: Run) -> None:
        """Forget the values of another run."""
        self.final_ops_values = None

    def end(self, run: Run) -> None:
        """Compute the values."""
        if isinstance(self._final_ops, Mapping):
            values = {name: op(run) for name, op in self._final_ops.items()}
            self.final_ops_values = values
        else:
            self.final_ops_values = self._final_ops(run)
