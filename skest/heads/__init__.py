# SPDX-License-Identifier: Apache-2.0
"""Heads: all that lies behind the last hidden layer of a model."""

from typing import TYPE_CHECKING, Any

from skest._former_names import no_attribute
from skest.heads.base import Head
from skest.heads.binary_class import BinaryClassHead
from skest.heads.logistic import LogisticRegressionHead
from skest.heads.multi_class import MultiClassHead
from skest.heads.multi_head import MultiHead
from skest.heads.multi_label import MultiLabelHead
from skest.heads.poisson import PoissonRegressionHead
from skest.heads.regression import RegressionHead
from skest.heads.sampled_softmax import SampledSoftmaxHead
from skest.heads.single_task import SingleTaskHead

__all__ = [
    "BinaryClassHead",
    "Head",
    "LogisticRegressionHead",
    "MultiClassHead",
    "MultiHead",
    "MultiLabelHead",
    "PoissonRegressionHead",
    "RegressionHead",
    "SampledSoftmaxHead",
    "SingleTaskHead",
]


if not TYPE_CHECKING:  # which would take any name for one that is there

    def __getattr__(name: str) -> Any:
        raise no_attribute(__name__, name)
