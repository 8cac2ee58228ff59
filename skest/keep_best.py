# SPDX-License-Identifier: Apache-2.0
"""`KeepBest`: which evaluated checkpoints stay."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from skest._checks import check_integer

__all__ = ["KeepBest"]


@dataclass(frozen=True)
class KeepBest:
    """A rule for `skest.RunConfig`: the checkpoints with the best results stay.

    They stay in addition to the newest ones. Results are those that
    ``Estimator.evaluate``, and with it ``train_and_evaluate``, has recorded in
    ``Estimator.eval_dir``; so the rule goes on where it was in another process.

    Parameters
    ----------
    number : int, default=1
        How many stay.
    metric : str, default="loss"
        A metric of the evaluation. NaN is no result.
    greater_is_better : bool, default=False
        Whether the highest value is the best one, and not the lowest.
    eval_name : str, default=None
        Name of the evaluation, as in `skest.EvalSpec`, where there are several.

    Raises
    ------
    ValueError
        If `number` is not positive, or `metric` is empty.
    TypeError
        If `number` is no integer, or a name no string.

    Examples
    --------
    >>> from skest import KeepBest, RunConfig
    >>> config = RunConfig(
    ...     "model", keep_best=KeepBest(3, "auc", greater_is_better=True)
    ... )
    """

    number: int = 1
    metric: str = "loss"
    greater_is_better: bool = False
    eval_name: str | None = None

    def __post_init__(self) -> None:
        check_integer(self.number, "number", "KeepBest", 1)
        if not isinstance(self.metric, str):
            raise TypeError(
                f"'metric' of KeepBest must be the name of a metric; got {self.metric!r}."
            )
        if not self.metric:
            raise ValueError("'metric' of KeepBest must not be empty.")
        if not isinstance(self.eval_name, str | None):
            raise TypeError(
                f"'eval_name' of KeepBest must be a string or None; "
                f"got {self.eval_name!r}."
            )

    def check(self, metrics: Mapping[str, float]) -> None:
        """Raise ValueError if the metric is no number of the result of an evaluation."""
        numbers = sorted(name for name, value in metrics.items() if np.ndim(value) == 0)
        if self.metric not in numbers:
            is_array = "it is an array, which has no best; numbers are"
            found = is_array if self.metric in metrics else "the evaluation has only"
            raise ValueError(
                f"'metric' of KeepBest is {self.metric!r}, but {found} "
                f"{', '.join(map(repr, numbers))}."
            )

    def ranked(self, results: Mapping[int, Mapping[str, float]]) -> list[int]:
        """Return the steps of some results, best first; at a tie the earlier one.

        Parameters
        ----------
        results : dict of int to dict of str to float
            Metrics by global step.

        Examples
        --------
        >>> from skest import KeepBest
        >>> KeepBest().ranked({10: {"loss": 0.5}, 20: {"loss": 0.2}})
        [20, 10]
        """
        values = {
            step: metrics[self.metric]
            for step, metrics in results.items()
            if self.metric in metrics
        }
        sign = -1 if self.greater_is_better else 1
        steps = sorted(step for step, value in values.items() if not math.isnan(value))
        return sorted(steps, key=lambda step: sign * values[step])
