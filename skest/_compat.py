# SPDX-License-Identifier: Apache-2.0
"""The private names of scikit-learn that skest uses, in one place."""

from sklearn.utils._param_validation import Hidden, Interval, Options, StrOptions
from sklearn.utils.validation import _check_sample_weight, _check_y

__all__ = [
    "Hidden",
    "Interval",
    "Options",
    "StrOptions",
    "check_sample_weight",
    "check_y",
]

check_sample_weight = _check_sample_weight
check_y = _check_y
