# SPDX-License-Identifier: Apache-2.0
"""Cross-validation whose fits of estimators of skest are trained together."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sklearn import model_selection

from skest.core.checks import each_once
from skest.model_selection.together import Together


def cross_validate(estimator: Any, X: Any, y: Any = None, **options: Any) -> Any:
    """Score an estimator by cross-validation, with the folds trained together.

    Parameters
    ----------
    estimator : estimator
        Of skest, also as the last step of a pipeline; others are fitted as ever.
    X, y : table and labels
        As for `sklearn.model_selection.cross_validate`.
    **options
        Those of `sklearn.model_selection.cross_validate`. With `verbose` it prints every
        few seconds how many fits are done, in the place of the estimators' lines.

    Returns
    -------
    dict of str to ndarray
        The same as that of scikit-learn.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from skest import LinearClassifier
    >>> from skest.model_selection import cross_validate
    >>> X, y = load_iris(return_X_y=True)
    >>> found = cross_validate(LinearClassifier(random_state=0), X, y, cv=3)
    >>> bool(found["test_score"].mean() > 0.9)
    True
    """
    with _together(options):
        return model_selection.cross_validate(estimator, X, y, **options)


def cross_val_predict(estimator: Any, X: Any, y: Any = None, **options: Any) -> Any:
    """Predict every row by an estimator that was not fitted on it.

    Parameters
    ----------
    estimator : estimator
        Of skest, also as the last step of a pipeline; others are fitted as ever.
    X, y : table and labels
        As for `sklearn.model_selection.cross_val_predict`.
    **options
        As for `cross_validate`.

    Returns
    -------
    ndarray of shape (n_samples,) or (n_samples, n_classes)
        The same as that of scikit-learn.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from skest import LinearClassifier
    >>> from skest.model_selection import cross_val_predict
    >>> X, y = load_iris(return_X_y=True)
    >>> model = LinearClassifier(random_state=0)
    >>> cross_val_predict(model, X, y, cv=3, method="predict_proba").shape
    (150, 3)
    """
    with _together(options):
        return model_selection.cross_val_predict(estimator, X, y, **options)


@contextmanager
def _together(options: dict[str, Any]) -> Iterator[None]:
    """Train together, and say how far it is instead of joblib."""
    verbose = options.pop("verbose", 0)
    with each_once(), Together(options.get("n_jobs"), verbose=verbose).active():
        yield
