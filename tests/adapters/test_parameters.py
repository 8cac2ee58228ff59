# SPDX-License-Identifier: Apache-2.0
"""Parameters are declared once; constructor, documentation and checks follow."""

import inspect
import pickle
import re

import numpy as np
import pytest
from sklearn.base import clone

import skest
from skest import DNNClassifier, ModelFnRegressor, RNNRegressor, adapters


@pytest.mark.parametrize("name", adapters.__all__)
def test_every_parameter_is_documented_and_checked(name):
    cls = getattr(skest, name)
    arguments = inspect.signature(cls).parameters
    section = cls.__doc__.split("Parameters\n----------\n")[1].split("\n\nAttributes")[
        0
    ]
    documented = re.findall(r"^(\w+) : .*, default=(.*)$", section, re.MULTILINE)
    shown = [(n, repr(a.default).replace("'", '"')) for n, a in arguments.items()]
    assert documented == shown
    assert set(cls._parameter_constraints) == set(arguments) == set(cls().get_params())


def test_a_default_of_one_family_is_not_that_of_others():
    assert (RNNRegressor().clip_norm, DNNClassifier().clip_norm) == (5.0, None)
    assert not hasattr(ModelFnRegressor(), "n_members")
    assert "loss" not in ModelFnRegressor().get_params()


class Narrow(DNNClassifier):
    """A subclass as scikit-learn wants it: a constructor that stores what it is given."""

    def __init__(self, width=8, *, tol=1e-3, random_state=0):
        super().__init__((width,), tol=tol, max_iter=3, random_state=random_state)
        self.width = width


def test_a_subclass_with_a_constructor_of_its_own():
    X = np.random.default_rng(0).normal(size=(40, 3))
    y = X[:, 0] > 0
    model = clone(Narrow(4)).set_params(width=5).fit(X, y)
    assert model.get_params() == {"width": 5, "tol": 1e-3, "random_state": 0}
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again.predict(X), model.predict(X))
    with pytest.raises(ValueError, match="'tol' parameter of Narrow must be a float"):
        Narrow(tol=-1).fit(X, y)


def test_unknown_and_positional_arguments():
    with pytest.raises(TypeError, match=r"DNNClassifier.*unexpected.*'droput'"):
        DNNClassifier(droput=0.1)
    with pytest.raises(TypeError, match="takes from 1 to 2 positional arguments"):
        DNNClassifier((8,), None)
