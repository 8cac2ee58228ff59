# SPDX-License-Identifier: Apache-2.0
"""Canned model functions: the models of tf.estimator, without scikit-learn.

Each takes features, labels and mode, and returns an `EstimatorSpec` of columns, a network,
a head and optimizers; bind its other arguments with `functools.partial` and give it to
`skest.Estimator`. The estimators of `skest.adapters` are built on them.
"""

from skest.canned.dnn import dnn_model_fn
from skest.canned.dnn_linear import dnn_linear_combined_model_fn
from skest.canned.linear import baseline_model_fn, linear_model_fn
from skest.canned.rnn import rnn_model_fn

__all__ = [
    "baseline_model_fn",
    "dnn_linear_combined_model_fn",
    "dnn_model_fn",
    "linear_model_fn",
    "rnn_model_fn",
]
