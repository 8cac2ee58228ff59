# SPDX-License-Identifier: Apache-2.0
"""A small estimator of every family, and data that all of them take."""

import numpy as np
from sklearn.base import is_regressor

import skest
from skest.heads import BinaryClassHead
from tests.adapters import _model_fns as model_fns

_QUICK = {"max_iter": 4, "batch_size": 20, "random_state": 0}
_PLAIN = {"early_stopping": False, "n_members": 1}
_WIDTHS = ("hidden_units", "dnn_hidden_units", "units")
_NO_ESTIMATORS = ("Estimator", "EstimatorSpec")


def small(estimator_class, **options):
    """An estimator that is quick to train."""
    names = estimator_class().get_params()
    widths = {name: (6,) for name in _WIDTHS if name in names}
    if "model_fn" in names:
        options.setdefault("model_fn", model_fns.with_head)
    plain = {name: value for name, value in _PLAIN.items() if name in names}
    return estimator_class(**_QUICK | plain | widths | options)


CLASSES = [
    getattr(skest, name)
    for name in skest.__all__
    if name.endswith(("Classifier", "Regressor", "Estimator"))
    and name not in _NO_ESTIMATORS
]
#: One of each class, and others where training goes another way.
FAMILIES = {
    estimator_class.__name__: small(estimator_class) for estimator_class in CLASSES
}
FAMILIES |= {
    "SDCA": small(skest.LinearClassifier, optimizer="sdca"),
    "dropout": small(skest.DNNClassifier, dropout=0.5, batch_norm=True),
    "loss of the user's": small(skest.ModelFnRegressor, model_fn=model_fns.numbers),
    "head": small(skest.DNNEstimator, head=BinaryClassHead(thresholds=[0.3])),
}


def rows_for(estimator, n_rows=60, seed=0):
    """Return X of shape (n_rows, 3), y and weights."""
    rng = np.random.default_rng(seed)
    X = rng.normal(loc=3, scale=5, size=(n_rows, 3))
    y = X[:, 0] - X[:, 1] / 2
    weight = rng.uniform(0.1, 3, size=n_rows)
    return X, y if is_regressor(estimator) else (y > 1.5).astype(int), weight
