# SPDX-License-Identifier: Apache-2.0
"""scikit-learn's own networks, as they are constructed."""

from sklearn.neural_network import MLPClassifier, MLPRegressor

PACKAGES: list[str] = []

ESTIMATORS = {
    "scikit-learn `MLPClassifier`": MLPClassifier(),
    "scikit-learn `MLPRegressor`": MLPRegressor(),
}
