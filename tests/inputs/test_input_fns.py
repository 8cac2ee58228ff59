# SPDX-License-Identifier: Apache-2.0

import numpy as np
import pandas as pd
import pytest

from skest import RunConfig
from skest.inputs import (
    ArrayDataset,
    Pipeline,
    generator_input_fn,
    numpy_input_fn,
    pandas_input_fn,
)

X = {"a": np.arange(6), "b": np.arange(6) * 0.5}
Y = np.arange(6) % 2
FRAME = pd.DataFrame(X, index=list("uvwxyz"))


def order(input_fn, config=None):
    return np.concatenate([features["a"] for features, _ in input_fn(config)]).tolist()


@pytest.mark.parametrize(("make", "x"), [(numpy_input_fn, X), (pandas_input_fn, FRAME)])
class TestTables:
    def test_returns_a_new_dataset_for_every_call(self, make, x):
        input_fn = make(x, Y, batch_size=4, num_epochs=2, shuffle=False)
        first, second = input_fn(), input_fn(RunConfig())
        assert isinstance(first, ArrayDataset)
        assert first is not second
        assert [len(labels) for _, labels in first] == [4, 2, 4, 2]
        assert order(input_fn) == [*range(6), *range(6)]

    def test_the_seed_of_the_run_orders_unless_one_is_given(self, make, x):
        config, other = RunConfig(random_seed=1), RunConfig(random_seed=2)
        free = make(x, Y, num_epochs=4, shuffle=True)
        assert order(free, config) == order(free, config) != order(free, other)
        seeded = make(x, Y, num_epochs=4, shuffle=True, seed=1)
        assert order(seeded) == order(seeded, other) == order(free, config)

    def test_shuffle_must_be_said(self, make, x):
        for shuffle in [None, 1, "yes"]:
            with pytest.raises(
                ValueError, match=f"'shuffle' must be True.*got {shuffle!r}"
            ):
                make(x, Y, shuffle=shuffle)

    def test_wrong_data_is_refused_at_once(self, make, x):
        with pytest.raises(ValueError, match="same number of rows; got 6 and 2"):
            make(x, Y[:2], shuffle=False)
        with pytest.raises(ValueError, match="'batch_size'"):
            make(x, Y, batch_size=0, shuffle=False)


def test_a_batch_ends_with_the_epoch_and_that_of_a_pipeline_does_not():
    x, y = np.arange(10.0), np.arange(10)
    ours = numpy_input_fn(x, y, batch_size=4, num_epochs=3, shuffle=False)()
    as_in_tensorflow = Pipeline(ArrayDataset(x, y)).unbatch().repeat(3).batch(4)
    for batches, sizes in [(ours, [4, 4, 2] * 3), (as_in_tensorflow, [4] * 7 + [2])]:
        assert [len(labels) for _, labels in batches] == sizes
        rows = np.concatenate([features for features, _ in batches])
        np.testing.assert_array_equal(rows, np.tile(x, 3))


def test_pandas_checks():
    with pytest.raises(TypeError, match="'x' must be a pandas DataFrame; got dict"):
        pandas_input_fn(X, shuffle=False)
    with pytest.raises(ValueError, match="'x' and 'y' must have the same index"):
        pandas_input_fn(FRAME, pd.Series(Y), shuffle=False)
    aligned = pd.Series(Y, index=FRAME.index)
    features, labels = next(iter(pandas_input_fn(FRAME, aligned, 2, shuffle=False)()))
    assert features.index.tolist() == labels.index.tolist() == ["u", "v"]


# Generators


def rows(n=5):
    for i in range(n):
        yield {"x": i, "word": "ab"[i % 2]}, float(i)


def test_generator_rows_become_batches():
    input_fn = generator_input_fn(rows, batch_size=2)
    for _ in range(2):  # every call starts anew
        batches = list(input_fn())
        assert [features["x"].tolist() for features, _ in batches] == [
            [0, 1],
            [2, 3],
            [4],
        ]
        assert [features["word"].tolist() for features, _ in batches][2] == ["a"]
        assert [labels.tolist() for _, labels in batches] == [[0, 1], [2, 3], [4]]


def test_generator_checks():
    for arguments, error, message in [
        ((rows(),), TypeError, "'rows' must be a function .*without calling it"),
        ((rows, 0), ValueError, "'batch_size' of generator_input_fn must be .*got 0"),
        ((rows, 1.5), TypeError, "'batch_size' of generator_input_fn must be"),
    ]:
        with pytest.raises(error, match=message):
            generator_input_fn(*arguments)
