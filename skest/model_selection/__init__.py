# SPDX-License-Identifier: Apache-2.0
"""Many models: searches and cross-validation that can end early, and ensembles."""

from skest.model_selection.ensemble import EnsembleClassifier, EnsembleRegressor
from skest.model_selection.fit_many import fit_many
from skest.model_selection.search import (
    GridSearchCV,
    HalvingGridSearchCV,
    HalvingRandomSearchCV,
    RandomizedSearchCV,
    cross_val_predict,
    cross_validate,
)

__all__ = [
    "EnsembleClassifier",
    "EnsembleRegressor",
    "GridSearchCV",
    "HalvingGridSearchCV",
    "HalvingRandomSearchCV",
    "RandomizedSearchCV",
    "cross_val_predict",
    "cross_validate",
    "fit_many",
]
