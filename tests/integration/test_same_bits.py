# SPDX-License-Identifier: Apache-2.0
"""A model gives the same bits wherever its weights come from."""

import pickle

import joblib
import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_array_equal

from skest import DNNLinearCombinedRegressor, DNNRegressor, RunConfig

N_ROWS = 300


def numbers():
    x = np.random.default_rng(0).normal(size=(N_ROWS, 13)).astype(np.float32)
    return x, x[:, 0] * x[:, 1]


def people():
    x, y = numbers()
    words = np.random.default_rng(1).integers(0, 90, N_ROWS).astype(str)
    return pd.DataFrame({"a": x[:, 0], "b": x[:, 1], "word": words}), y


MODELS = {
    "dense": (DNNRegressor, numbers),
    "wide and deep": (DNNLinearCombinedRegressor, people),
}


def pickled(model, tmp_path):
    return pickle.loads(pickle.dumps(model))


def memory_mapped(model, tmp_path):
    joblib.dump(model, tmp_path / "model")
    return joblib.load(tmp_path / "model", mmap_mode="r")


WAYS = [pickled, memory_mapped]


def predictions(model, x):
    """Predict few rows, and odd numbers of them: the last ones are summed by themselves."""
    sizes = [*[1] * 30, *[2] * 15, *[3] * 10, 17, 173]
    stops = np.cumsum(sizes)
    parts = [x[stop - n : stop] for stop, n in zip(stops, sizes, strict=True)]
    return np.concatenate([model.predict(part) for part in parts])


@pytest.mark.parametrize(
    ("kind", "execution"), [("dense", "auto"), ("wide and deep", "eager")]
)
def test_a_model_predicts_the_same_bits_wherever_it_comes_from(
    kind, execution, tmp_path
):
    make, data = MODELS[kind]
    x, y = data()
    configs = [
        RunConfig(execution=execution, model_dir=directory)
        for directory in (None, tmp_path / "own")
    ]
    in_memory, on_disk = (
        make(max_iter=2, early_stopping=False, random_state=0, config=config).fit(x, y)
        for config in configs
    )
    expected = predictions(in_memory, x)
    assert_array_equal(predictions(on_disk, x), expected)
    for way in WAYS:
        found = predictions(way(on_disk, tmp_path), x)
        assert_array_equal(found, expected, err_msg=way.__name__)
