# SPDX-License-Identifier: Apache-2.0
"""The private names of scikit-learn that skest uses, in one place."""

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

_DOC_PAGE = "https://skest.readthedocs.io/en/stable/api/{name}.html"


class DocLinkMixin:
    """Lets the HTML representation of a public class link to its page.

    Examples
    --------
    >>> from skest import DNNClassifier
    >>> DNNClassifier()._get_doc_link()
    'https://skest.readthedocs.io/en/stable/api/skest.DNNClassifier.html'
    """

    _doc_link_module = "skest"
    _doc_link_template = _DOC_PAGE

    def _doc_link_url_param_generator(self) -> dict[str, str]:
        # The public name: estimators are at the top, columns in their package.
        package = type(self).__module__.rpartition(".")[0].removesuffix(".adapters")
        return {"name": f"{package}.{type(self).__name__}"}
