# SPDX-License-Identifier: Apache-2.0
"""Heads: all that lies behind the last hidden layer of a model.

A head reads raw labels and weights on the host, and makes of labels and logits the loss,
of logits the predictions, and of both the metrics. `create_estimator_spec` puts these
together with a network. They are functions of tensors: nothing here trains or writes.
"""

from skest.heads.base import Head
from skest.heads.classification import BinaryClassHead, MultiClassHead
from skest.heads.multi_head import MultiHead
from skest.heads.multi_label import MultiLabelHead
from skest.heads.regression import (
    LogisticRegressionHead,
    PoissonRegressionHead,
    RegressionHead,
)
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
