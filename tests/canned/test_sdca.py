# SPDX-License-Identifier: Apache-2.0
"""LinearSDCA in the core Estimator: ids, checkpoints, and what it refuses."""

from functools import partial

import numpy as np
import pytest
import torch

from skest import Estimator, RunConfig
from skest import feature_columns as fc
from skest.canned.linear import linear_model_fn
from skest.canned.sdca import LinearSDCA
from skest.heads import BinaryClassHead, MultiHead, RegressionHead
from skest.losses import absolute_error
from tests._models import assert_same_checkpoint

IDS = {
    "strings": [f"row-{i}" for i in range(20)],
    "integers": np.arange(20) * 10**15 - 3,
    "column of integers": np.arange(20).reshape(-1, 1),
}


def table(ids=IDS["strings"]):
    rng = np.random.default_rng(0)
    features = {
        "id": np.asarray(ids),
        "x": rng.normal(size=(20, 2)),
        "age": rng.integers(20, 60, 20),
        "city": rng.choice(["Rome", "Oslo", ""], (20, 2)).astype(object),
        "job": rng.integers(0, 3, 20),
        "w": rng.uniform(0.5, 2, 20),
    }
    return features, (features["x"][:, 0] > 0).astype(int)


CITY = fc.categorical_column_with_vocabulary_list("city", ["Rome", "Oslo"])
JOB = fc.categorical_column_with_identity("job", 3)
COLUMNS = [
    fc.numeric_column("x", shape=(2,)),
    fc.bucketized_column(fc.numeric_column("age"), [30, 40, 50]),
    fc.piecewise_linear_column(fc.numeric_column("age"), [20, 30, 50]),
    fc.indicator_column(JOB),
    fc.crossed_column(["city", "job"], 7),
    CITY,
]


BY_ID = LinearSDCA("id")


def estimator(optimizer=BY_ID, *, head=None, columns=COLUMNS, **settings):
    model_dir = settings.pop("model_dir", None)
    model_fn = partial(
        linear_model_fn,
        head=head or BinaryClassHead(weight_column="w"),
        columns=fc.FeatureColumns(columns),
        optimizer=optimizer,
        **settings,
    )
    return Estimator(model_fn, model_dir, RunConfig(random_seed=0))


def batches(features, labels, size=4):
    def input_fn():
        while True:
            for start in range(0, len(labels), size):
                rows = slice(start, start + size)
                yield {k: v[rows] for k, v in features.items()}, labels[rows]

    return input_fn


def weights(model):
    return model.checkpoint.variables


@pytest.mark.parametrize(
    ("ids", "dtype", "in_memory"),
    [("strings", torch.float32, False), ("integers", torch.float64, True)],
)
def test_resumed_training_is_the_same(ids, dtype, in_memory, tmp_path):
    input_fn = batches(*table(IDS[ids]))
    once = estimator(LinearSDCA("id", l1=0.05), dtype=dtype)
    once.train(input_fn, steps=10)
    model_dir = None if in_memory else tmp_path
    twice = partial(estimator, dtype=dtype, model_dir=model_dir)
    first = twice(LinearSDCA("id", l1=0.05)).train(input_fn, steps=4)
    second = twice(LinearSDCA("id", l1=0.05))
    second.checkpoint = first.checkpoint
    # The input goes on where it was.
    second.train(after(input_fn, 4), steps=6)
    assert_same_checkpoint(once.checkpoint, second.checkpoint)


def after(input_fn, n_batches):
    def rest():
        data = iter(input_fn())
        for _ in range(n_batches):
            next(data)
        return data

    return rest


def test_evaluation_and_prediction_need_no_ids():
    features, labels = table()
    model = estimator().train(batches(features, labels), steps=5)
    del features["id"]
    assert model.evaluate(batches(features, labels), steps=5)["global_step"] == 5
    assert next(model.predict(lambda: [features]))["logits"].shape == (1,)


def test_wrong_settings():
    for arguments, error, match in [
        ({"l1": -1.0}, ValueError, "'l1' of LinearSDCA must be .* at least 0; got -1"),
        ({"l2": 0.0}, ValueError, "'l2' of LinearSDCA must be .* greater than 0; .* 0"),
        ({"example_id_column": 3}, TypeError, "'example_id_column' .* name of a"),
    ]:
        with pytest.raises(error, match=match):
            LinearSDCA(**arguments)


def test_models_that_it_cannot_train():
    for settings, match in [
        ({"optimizer": "sdca"}, r"LinearSDCA\(example_id_column=\.\.\.\)"),
        ({"optimizer": LinearSDCA("key")}, "example id column 'key' among .* features"),
        ({"sparse_combiner": "sqrtn"}, "sparse_combiner=\"sum\"; got 'sqrtn'"),
        ({"learning_rate": 0.1}, r"'learning_rate' .* got 0\.1.*LinearSDCA\(l1="),
        ({"l1": 0.1}, "'l1' has no meaning for LinearSDCA"),
        ({"l2": 0.1}, "'l2' has no meaning for LinearSDCA"),
        ({"weight_decay": 0.1}, "'weight_decay' has no meaning for LinearSDCA"),
        ({"head": RegressionHead(2)}, "label_dimension=2"),
        ({"head": RegressionHead(loss_fn=absolute_error)}, "got RegressionHead"),
        ({"head": MultiHead([BinaryClassHead(name="a")])}, "got MultiHead"),
        ({"columns": [fc.embedding_column(CITY, 2)]}, "cannot .* 'city_embedding'"),
        (
            {"columns": [fc.categorical_column_with_hash_bucket("id", 10)]},
            "feature column 'id' reads 'id', which LinearSDCA takes for the ids",
        ),
    ]:
        model = estimator(**settings)
        with pytest.raises(ValueError, match=match):
            model.train(batches(*table()), steps=1)
        assert model.checkpoint is None


def test_wrong_ids():
    for ids, match in [
        ([None, *"abcdefghijklmnopqrs"], "column 'id' has no value in row 0"),
        (np.zeros((20, 2), int), r"one value for each example; got the shape \(4, 2\)"),
        (np.zeros(20, int), "same example id but are different"),
        (np.linspace(0, 1, 20), "Column 'id'"),
    ]:
        with pytest.raises(ValueError, match=match):
            estimator().train(batches(*table(ids)), steps=1)
