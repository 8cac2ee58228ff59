# SPDX-License-Identifier: Apache-2.0
"""What "auto" stands for: the training recipe of networks, and plain settings else."""

import math
from collections.abc import Sequence
from numbers import Real
from typing import Any, ClassVar

from skest.adapters.parameters import TrainingParameters
from skest.config.run_config import strategy_of
from skest.heads.base import Head
from skest.hooks.logging import ProgressBarHook
from skest.optimizers.schedules import CosineCycles

# Batches by the number of rows (up to which): many steps where there are few rows.
_BATCH_SIZES = ((1_024, 32), (2_048, 64), (8_192, 128), (65_536, 256), (262_144, 512))
_LARGEST_BATCH = 1_024
# Steps of a training that needs all cycles, within bounds for the epochs.
_N_STEPS = 4_000
_FEWEST_EPOCHS, _MOST_EPOCHS = 15, 100
# Of the epochs, and of steps, one of so many parts comes last and takes all rows.
LAST_PART = 5
# Fewer rows come in one batch and without dropout: then nothing is random but the start,
# and a weight is a repetition, as scikit-learn's checks ask. Against overfitting there are
# many members: of 11 tables with 20 to 56 rows, the mean loss is .906 of a linear model's,
# with 3 members .947 and at the worst 1.45 of it.
_FEWEST_ROWS_TO_HOLD_OUT, _MEMBERS_OF_FEW_ROWS = 60, 16
# Nor does a part with fewer: then every row is held out once. On breast_cancer, that
# halves the log loss, to .10.
_FEWEST_HELD_OUT, _N_FOLDS = 100, 5
# Highest rates of the schedule, by optimizer.
_PEAKS = {"auto": 0.002, "adam": 0.002, "adamw": 0.002, "rmsprop": 0.002}
_OTHER_PEAK = 0.05
# Of the peak, for rows that come after a fit. The whole of it takes up to 5 % of the loss
# away again (flights, bike), a tenth follows a change of the labels half as fast.
_RATE_AFTER_FIT = 0.3
_FEWEST_OF_A_STREAM = 200  # rows, of which partial_fit is given a few at a time
# Without the schedule "auto" is what it was before there was one.
_PLAIN: dict[str, Any] = {"batch_size": 200, "max_iter": 200, "n_iter_no_change": 10}
_PLAIN |= {"dropout": 0.0, "dnn_dropout": 0.0, "weight_decay": 0.0, "n_members": 1}
# Wide & deep has an AUC of .9260 on Census with 2 members, .9274 with 3 and .9293 with 4;
# on letter 2 are the best, and each takes its time.
_RECIPE = {"dropout": 0.1, "dnn_dropout": 0.1, "weight_decay": 0.01, "n_members": 3}
# What a person is told of these choices.
_REASONS = {
    "batch_size": "larger for larger tables",
    "max_iter": "fewer for larger tables; the last fifth may take all rows",
    "n_iter_no_change": "training may stop only at the end of a learning-rate cycle",
    "dropout": "0.1, but 0 for tables of fewer than 60 rows",
    "dnn_dropout": "0.1, but 0 for tables of fewer than 60 rows",
    "weight_decay": "0.01 with AdamW, 0 with other optimizers",
    "n_members": "networks side by side, averaged: 3, of fewer than 60 rows 16",
    "early_stopping": "rows are held out from 60 rows on",
}
_PLAIN_REASONS = {
    "batch_size": "about 200, so that the last batch is not small",
    "early_stopping": "rows are held out for tables of more than 10,000 rows; of classes, "
    "by linear models, from 1,000 on if there are fewer than 20 for each column",
}
_MANY_ROWS = 10_000  # rows are held out above this, as HistGradientBoosting does


def budget_of(n_rows: float) -> dict[str, int]:
    """Return how long a training on a table of so many rows may last.

    Examples
    --------
    >>> from skest.adapters.recipe import budget_of
    >>> budget_of(150), budget_of(1_000_000)
    ({'batch_size': 32, 'max_iter': 100}, {'batch_size': 1024, 'max_iter': 15})
    """
    sizes = (size for most, size in _BATCH_SIZES if n_rows <= most)
    batch_size = next(sizes, _LARGEST_BATCH)
    # One batch: its gradient is exact, and any order of the rows is the same.
    if n_rows < _FEWEST_ROWS_TO_HOLD_OUT:
        return {"batch_size": int(n_rows), "max_iter": _MOST_EPOCHS}
    n_epochs = round(_N_STEPS * batch_size / n_rows)
    n_epochs = min(max(n_epochs, _FEWEST_EPOCHS), _MOST_EPOCHS)
    return {"batch_size": batch_size, "max_iter": n_epochs}


def without_small_last(batch_size: int, n_rows: int) -> int:
    """Return a batch size like the given one whose last batch is at least half of it.

    A step follows the mean of its batch: the only row of a last one would have the
    weight of a whole batch.

    Examples
    --------
    >>> from skest.adapters.recipe import without_small_last
    >>> without_small_last(200, 2000), without_small_last(200, 2001)
    (200, 182)
    """
    size = -(-n_rows // -(-n_rows // batch_size))
    while 0 < n_rows % size < size / 2:
        size += 1
    return size


def auto_epochs(model: "AutoParameters", n_rows: int) -> int:
    """Return what ``max_iter="auto"`` of an estimator is for so many rows."""
    return int((budget_of(n_rows) if model._has_schedule else _PLAIN)["max_iter"])


class AutoParameters(TrainingParameters):
    """Fits with parameters that are "auto".

    Attributes
    ----------
    auto_params_ : dict of str to object
        What was chosen for parameters that are "auto"; and the schedule that starts at a
        learning rate.
    """

    auto_params_: dict[str, Any]
    _target: Any
    _peak_of_fit: float | None = None
    #: The parameters with the optimizer and the rate of a network that has the recipe.
    _recipe_for: ClassVar[tuple[str, str] | None] = None

    def _chosen(self, name: str) -> Any:
        """Return a parameter, or what was chosen for it if it is "auto"."""
        value = getattr(self, name)
        is_peak = self._has_schedule and name == self._recipe_for[1]  # type: ignore[index]
        if _auto(value) or is_peak:
            return vars(self).get("auto_params_", {}).get(name, value)
        return value

    @property
    def _has_schedule(self) -> bool:
        """Whether the rate follows the schedule of the recipe.

        A search over the rate alone must not leave the recipe: beside an optimizer that
        is "auto", a number is where the schedule starts.
        """
        # Linear models are convex, and tf.estimator's FTRL does well as it is.
        if self._recipe_for is None:
            return False
        optimizer, rate = (getattr(self, name) for name in self._recipe_for)
        is_number = isinstance(rate, Real) and not isinstance(rate, bool)
        return _auto(rate) or (_auto(optimizer) and is_number)

    @property
    def _takes_members(self) -> bool:
        """Whether the last layer may be several."""
        output: Any = type(self._target.head(None)).output_layer
        return output is Head.output_layer and not getattr(self, "batch_norm", False)

    def _choose(
        self,
        n_rows: float,
        *,
        takes_all: bool = False,
        is_whole: bool = True,
        source: Any = None,
    ) -> None:
        """Choose for a training on so many rows.

        It may hold some of them out, and `takes_all` of them in the end; or the table
        `is_whole` not, and more rows come later. The network may be that of a `source`,
        whose members it has, whatever the rows are.
        """
        if not is_whole:  # a first part of few rows says nothing of those that follow
            n_rows = max(n_rows, _FEWEST_OF_A_STREAM)
        choices: dict[str, Any] = {**_PLAIN, "early_stopping": n_rows > _MANY_ROWS}
        choices["batch_size"] = min(choices["batch_size"], n_rows)
        if self._recipe_for is not None and self._has_schedule:
            choices |= budget_of(n_rows) | _RECIPE
            if getattr(self, self._recipe_for[0]) != "auto":
                choices["weight_decay"] = 0.0  # an L2 penalty is another thing
            choices["n_iter_no_change"] = math.inf  # the schedule says when to look
            choices["early_stopping"] = n_rows >= _FEWEST_ROWS_TO_HOLD_OUT
            if n_rows < _FEWEST_ROWS_TO_HOLD_OUT:
                choices |= dict.fromkeys(("dropout", "dnn_dropout"), 0.0)
                choices["n_members"] = _MEMBERS_OF_FEW_ROWS
            elif takes_all and self._n_folds(n_rows) == 1:
                # The epochs on all rows come on top of those that find the best one.
                choices["max_iter"] += choices["max_iter"] // (LAST_PART - 1)
        if hasattr(source, "n_members"):
            # As it was in its fit, and not as `set_params` has left it since.
            choices["n_members"] = source._as_fitted()._chosen("n_members")
        # A head that brings its own last layer has one of it; batch norm would mix
        # members.
        if choices["n_members"] > 1 and not self._takes_members:
            choices["n_members"] = 1
        self.auto_params_ = {
            name: choice
            for name, choice in choices.items()
            if _auto(getattr(self, name, None))
        }
        self._peak_of_fit = None
        self._schedule(None)

    def _schedule(
        self,
        n_steps: int | None,
        first_step: int = 0,
        n_cycles: int = 4,
        fullness: float = 1.0,
    ) -> None:
        """Choose the rate for so many steps; None are steps without a known end.

        It is constant for those, and where a scheduler is given. `fullness` is the share
        of a batch that they have: after a fit, steps of few rows are small ones.
        """
        if self._recipe_for is None or not self._has_schedule:
            return
        optimizer, rate = self._recipe_for
        name, peak = getattr(self, optimizer), getattr(self, rate)
        if _auto(peak):
            is_known = isinstance(name, str)
            peak = _PEAKS.get(name.lower(), _OTHER_PEAK) if is_known else None
        chosen: Any = peak
        own = getattr(self, "lr_scheduler", None) is None
        if peak is not None and own:
            if n_steps is not None:
                chosen = CosineCycles(peak, n_steps, first_step, n_cycles)
                self._peak_of_fit = peak
            elif self._peak_of_fit == peak:  # else it was set since
                chosen = _RATE_AFTER_FIT * fullness * peak
        self.auto_params_ = {**self.auto_params_, rate: chosen}

    def _reasons(self) -> dict[str, tuple[Any, str]]:
        """Return what was chosen for parameters that are "auto", and why."""
        why = dict.fromkeys(
            self.auto_params_,
            "the default without a learning-rate schedule",
        )
        why |= _REASONS if self._has_schedule else _PLAIN_REASONS
        if self._recipe_for is not None:
            rate = self._recipe_for[1]
            why[rate] = "starts high and falls to almost zero in each cycle"
            if self.auto_params_.get(rate) is None:
                why[rate] = "that of the given optimizer"
            elif getattr(self, "lr_scheduler", None) is not None:
                why[rate] = "where the given schedule starts"
            elif self._is_after_fit(rate):
                why[rate] = "lower and constant, for rows that come after a fit"
        return {name: (value, why[name]) for name, value in self.auto_params_.items()}

    def _is_after_fit(self, rate: str) -> bool:
        value = self.auto_params_.get(rate)
        before = self._peak_of_fit
        return before is not None and isinstance(value, float) and value < before

    def _n_folds(self, n_rows: float) -> int:
        """Return by how many trainings to find the best epoch; 1 holds out one part."""
        # Hooks would see many trainings, and several processes start for each.
        is_alone = self.config is None or strategy_of(self.config) is None
        others = [h for h in self.hooks or () if not isinstance(h, ProgressBarHook)]
        if others or not is_alone:
            return 1
        return 1 if self._holds_out_enough(n_rows) else _N_FOLDS

    def _holds_out_enough(self, n_rows: float) -> bool:
        """Whether one part held out tells when training is best ended."""
        return self.validation_fraction * n_rows >= _FEWEST_HELD_OUT

    def _batch_size(self, n_rows: int) -> int:
        """Return the size of batches of so many rows."""
        size = min(int(self._chosen("batch_size")), n_rows)
        return without_small_last(size, n_rows) if self._evens_batches else size

    @property
    def _evens_batches(self) -> bool:
        """Whether to make the last batch no small one."""
        # With the schedule, the rate falls to zero in the end.
        return _auto(self.batch_size) and not self._has_schedule

    def _ends(self, n_epochs: int) -> Sequence[int]:
        """Return the epochs after which the schedule lets training end."""
        rate = self._chosen(self._recipe_for[1]) if self._recipe_for else None
        return rate.ends(n_epochs) if isinstance(rate, CosineCycles) else ()


def _auto(value: Any) -> bool:
    return isinstance(value, str) and value == "auto"
