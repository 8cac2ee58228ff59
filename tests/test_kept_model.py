# SPDX-License-Identifier: Apache-2.0
"""The model that an Estimator keeps between predictions."""

import pickle
import shutil

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from skest import DNNClassifier, RunConfig
from skest.exceptions import NotFittedError
from skest.hooks import Hook
from skest.inputs import numpy_input_fn

X = np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32)
Y = (X[:, 0] > 0).astype(int)


@pytest.fixture(params=["memory", "directory"])
def model(request, tmp_path):
    config = None if request.param == "memory" else RunConfig(model_dir=tmp_path)
    return DNNClassifier((4,), max_iter=2, random_state=0, config=config).fit(X, Y)


def test_another_checkpoint_gives_another_model(model):
    before = model.predict_proba(X)
    model.partial_fit(X, Y)
    after = model.predict_proba(X)
    assert not np.array_equal(before, after)
    estimator = model.estimator_
    other = DNNClassifier((4,), max_iter=1, random_state=1).fit(X, Y)
    estimator.checkpoint = other.estimator_.checkpoint
    assert_array_equal(model.predict_proba(X), other.predict_proba(X))
    same_step = DNNClassifier((4,), max_iter=1, random_state=2).fit(X, Y)
    estimator.checkpoint = same_step.estimator_.checkpoint
    assert_array_equal(model.predict_proba(X), same_step.predict_proba(X))


def test_a_directory_that_was_deleted(tmp_path):
    model = DNNClassifier((4,), max_iter=1, config=RunConfig(model_dir=tmp_path))
    model.fit(X, Y)
    saved = pickle.dumps(model)
    shutil.rmtree(model.model_dir_)
    with pytest.raises(NotFittedError, match="fit-.*, which does not exist.*fit again"):
        model.predict(X)
    pickle.loads(saved).predict(X)


def test_hooks_get_a_model_of_their_own(model):
    expected = model.predict_proba(X)

    class Spoil(Hook):
        def begin(self, run):
            for parameter in run.network.parameters():
                parameter.data.zero_()

    dataset = numpy_input_fn({"x": X}, shuffle=False)
    list(model.estimator_.predict(dataset, hooks=[Spoil()]))
    assert_array_equal(model.predict_proba(X), expected)
