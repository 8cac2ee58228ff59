# SPDX-License-Identifier: Apache-2.0
"""A warning shows the line of the user that led to it, however deep it was raised."""

import inspect
import warnings

import numpy as np
import pandas as pd
import pytest
from sklearn.model_selection import GridSearchCV

from skest import DNNLinearCombinedRegressor, DNNRegressor, Estimator, LinearRegressor
from skest.core.checks import warn
from skest.core.console import INTERRUPTED
from skest.hooks import Hook
from tests._models import At, model_fn, table_fn

CALLS = {
    "train": lambda e, hook: e.train(table_fn(), [hook], steps=1),
    "evaluate": lambda e, hook: e.evaluate(table_fn(), hooks=[hook]),
    "predict": lambda e, hook: list(e.predict(table_fn(labels=False), hooks=[hook])),
}


def warned_from(act, match):
    """Return where the only warning of `act` that says `match` is said to come from."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        act()
    (found,) = (w for w in caught if match in str(w.message))
    return found.filename, found.lineno


def line_of(function):
    """Return the place of the last line of a function."""
    lines, first = inspect.getsourcelines(function)
    return __file__, first + len(lines) - 1


@pytest.mark.parametrize("call", CALLS)
def test_a_warning_inside_a_call_shows_the_line_of_the_call(call):
    # A hook stands for whatever skest itself does so deep.
    code = {"__name__": "skest.deep", "warn": warn}
    exec("def begin(run):\n    warn('This is said.')", code)
    hook = Hook()
    hook.begin = code["begin"]
    estimator = Estimator(model_fn).train(table_fn(), steps=1)
    place = warned_from(lambda: CALLS[call](estimator, hook), "This is said.")
    assert place == line_of(CALLS[call])


X = {"level": [[-1, 0], [1]] * 10}
Y = np.linspace(0, 1, 20)


def test_a_warning_of_inferred_columns_shows_the_line_of_the_fit():
    model = LinearRegressor(max_iter=1)

    def fit():
        model.fit(X, Y)

    assert warned_from(fit, "the integer -1") == line_of(fit)


@pytest.mark.parametrize("beside", [{}, {"day": [*"abcd"] * 5}], ids=["alone", "mixed"])
def test_numbers_called_ids_are_told_once_in_a_fit(beside):
    stores = pd.DataFrame({"store_id": [7, 3001, 42, 999] * 5, "size": Y, **beside})
    model = DNNLinearCombinedRegressor(dnn_hidden_units=(2,), max_iter=1)

    def fit():
        model.fit(stores, Y)

    said = "X['store_id'].astype('category'), or describe the column"
    assert warned_from(fit, said) == line_of(fit)


def test_a_fit_inside_a_search_shows_the_line_of_the_search():
    model = DNNRegressor((2,), hooks=[At(1, lambda run: run.request_stop(INTERRUPTED))])
    search = GridSearchCV(model, {"dropout": [0.1]}, cv=2, refit=False)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        search.fit(np.c_[Y, -Y], Y)
    found = {w.filename for w in caught if INTERRUPTED in str(w.message)}
    assert found == {__file__}
