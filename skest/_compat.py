# SPDX-License-Identifier: Apache-2.0
"""The private names of scikit-learn that skest uses, in one place."""

import inspect
from pathlib import Path

from sklearn.utils._param_validation import Interval, Options, StrOptions
from sklearn.utils._set_output import _get_output_config
from sklearn.utils.metaestimators import _BaseComposition
from sklearn.utils.validation import (
    _check_feature_names_in,
    _check_sample_weight,
    _check_y,
)

__all__ = [
    "BaseComposition",
    "DocLinkMixin",
    "Interval",
    "Options",
    "StrOptions",
    "check_feature_names_in",
    "check_sample_weight",
    "check_y",
    "get_output_config",
]

BaseComposition = _BaseComposition
check_feature_names_in = _check_feature_names_in
check_sample_weight = _check_sample_weight
check_y = _check_y
get_output_config = _get_output_config


class DocLinkMixin:
    """Lets the HTML representation of a class link to its file: there is no page yet.

    scikit-learn shows the descriptions of parameters only where there is a link.

    Examples
    --------
    >>> from skest import DNNClassifier
    >>> DNNClassifier()._get_doc_link().rpartition("/")[2]
    'dnn.py'
    """

    _doc_link_module = "skest"
    _doc_link_template = "{file}"

    def _doc_link_url_param_generator(self) -> dict[str, str]:
        return {"file": Path(inspect.getfile(type(self))).as_uri()}
