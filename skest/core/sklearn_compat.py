# SPDX-License-Identifier: Apache-2.0
"""The private names of scikit-learn that skest uses, in one place."""

import functools
from typing import Any

# Under public names here, so that a release that moves one changes one line.
from sklearn.utils import _safe_indexing as safe_indexing
from sklearn.utils._param_validation import Interval, Options, StrOptions
from sklearn.utils._set_output import _get_output_config as get_output_config
from sklearn.utils.metaestimators import _BaseComposition as BaseComposition
from sklearn.utils.validation import (
    _check_feature_names_in as check_feature_names_in,
)
from sklearn.utils.validation import (
    _check_sample_weight as check_sample_weight,
)
from sklearn.utils.validation import (
    _check_y as check_y,
)

__all__ = [
    "BaseComposition",
    "CachedParameterNames",
    "Interval",
    "Options",
    "StrOptions",
    "check_feature_names_in",
    "check_sample_weight",
    "check_y",
    "get_output_config",
    "safe_indexing",
]


class CachedParameterNames:
    """Mixin that reads the signature of a class once: clones ask for it again and again."""

    @classmethod
    def _get_param_names(cls: type) -> list[str]:
        # A copy: the list in the cache is for all.
        return list(_parameter_names(cls))


@functools.cache
def _parameter_names(cls: Any) -> list[str]:
    names: list[str] = super(CachedParameterNames, cls)._get_param_names()
    return names
