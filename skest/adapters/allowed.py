# SPDX-License-Identifier: Apache-2.0
"""What parameters of several estimators may be, as scikit-learn's constraints say it."""

from numbers import Integral, Real
from typing import TypeAlias

from skest.core.sklearn_compat import Interval, StrOptions
from skest.feature_columns.columns import FeatureColumns
from skest.networks.dnn import ACTIVATIONS
from skest.optimizers.schedules import RateFunction

AUTO = StrOptions({"auto"})
COUNT = Interval(Integral, 1, None, closed="left")
COUNT_OR_AUTO = [AUTO, COUNT]
POSITIVE = Interval(Real, 0, None, closed="neither")
NOT_NEGATIVE = [Interval(Real, 0, None, closed="left")]
NOT_NEGATIVE_OR_AUTO = [AUTO, *NOT_NEGATIVE]
# Without its ends: a part of 0 or of 1 would leave nothing on one side.
FRACTION = Interval(Real, 0, 1, closed="neither")
# A dropout of 1 would drop all units.
DROPOUT = [AUTO, Interval(Real, 0, 1, closed="left")]

WIDTHS = ["array-like", COUNT]
ACTIVATION = [StrOptions(set(ACTIVATIONS)), callable]
# What is in a list, FeatureColumns checks, and says which element is wrong.
COLUMNS = [FeatureColumns, list, tuple, None]
COMBINER = [StrOptions({"sum", "mean", "sqrtn"})]
# Names are looked up by `skest.optimizers.make_optimizer`, whose error lists all of them.
OPTIMIZER = [str, type, callable, list, tuple]
RATE = [POSITIVE, callable, None]
RATE_OR_AUTO = [AUTO, *RATE]

Rate: TypeAlias = float | RateFunction | None
