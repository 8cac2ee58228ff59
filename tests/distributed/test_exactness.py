# SPDX-License-Identifier: Apache-2.0
"""One worker with parameter servers trains as one process does, bit for bit."""

import functools
import logging

import numpy as np
import pytest
import torch
from torch import nn

from skest import DNNLinearCombinedClassifier, Estimator, EstimatorSpec, RunConfig
from skest import feature_columns as fc
from skest.engine.recorded.program import Program
from skest.heads import SampledSoftmaxHead
from skest.hooks import Hook
from skest.inputs import ArrayDataset
from skest.networks import DNN
from skest.optimizers import make_optimizer, make_optimizers

N_ROWS = 64
OPTIMIZERS = ("momentum", "adagrad", "adam", "ftrl")


def assert_same(found, expected):
    for name in ("variables", "optimizer"):
        ours, theirs = getattr(found, name), getattr(expected, name)
        assert ours.keys() == theirs.keys()
        assert [k for k in ours if not torch.equal(ours[k], theirs[k])] == []
    assert found.scalars == expected.scalars
    assert found.global_step == expected.global_step
    assert found.input_position == expected.input_position


def data(seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(N_ROWS, 3)).astype(np.float32)
    return x, x @ np.array([1.0, -2.0, 0.5], np.float32)


def input_fn(**options):
    return ArrayDataset(
        *data(), batch_size=8, shuffle=True, seed=1, num_epochs=None, **options
    )


def squared_error(labels, logits, features):
    return ((logits[:, 0] - labels) ** 2).mean()


def dense_model(optimizer):
    """Return a model function with dropout, batch normalization and clipping."""

    def model_fn(features, labels, mode):
        network = DNN(nn.Linear(3, 4), (5,), 1, dropout=0.3, batch_norm=True)
        made = make_optimizer(optimizer, network.named_parameters(), 0.05)
        return EstimatorSpec(
            mode, network=network, loss=squared_error, optimizer=made, clip_norm=0.5
        )

    return model_fn


def trained(model_fn, steps=10, fn=input_fn, **config):
    estimator = Estimator(model_fn, config=RunConfig(random_seed=3, **config))
    return estimator.train(fn, steps=steps).checkpoint


def test_one_worker_trains_a_dense_network_as_one_process_does(served):
    train = functools.partial(trained, dense_model("adam"))
    assert_same(served(2, train), train())


def wide_and_deep(optimizer, **options):
    """Fit on tables that are shared, weighted, tiny, and looked up with missing ids."""
    rng = np.random.default_rng(0)
    names = rng.choice(list("xyzuvw"), 200).astype(object)
    names[::7] = None
    X = {
        "a": rng.integers(-1, 90, 200),
        "b": names,
        "w": rng.normal(size=200).astype(np.float32),
        "n": rng.normal(size=200).astype(np.float32),
        "one": np.zeros(200, dtype=int),
    }
    a = fc.categorical_column_with_identity("a", 90)
    b = fc.categorical_column_with_hash_bucket("b", 30)
    one = fc.categorical_column_with_identity("one", 1)
    wide = [a, b, one, fc.crossed_column(["a", "b"], 50)]
    deep = [
        fc.embedding_column(fc.weighted_categorical_column(a, "w"), 4),
        fc.embedding_column(b, 3, combiner="sum", max_norm=0.5),
        fc.indicator_column(b),
        fc.numeric_column("n"),
    ]
    estimator = DNNLinearCombinedClassifier(
        (8,),
        linear_feature_columns=wide,
        dnn_feature_columns=deep,
        dnn_optimizer=optimizer,
        batch_size=32,
        random_state=0,
        **{"max_iter": 2, "dnn_learning_rate": 0.05, **options},
    )
    estimator.fit(X, (X["a"] % 3 == 0).astype(int))
    return estimator.estimator_.checkpoint


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_one_worker_trains_wide_and_deep_as_one_process_does(served, optimizer):
    options = {
        "dnn_dropout": 0.2,
        "batch_norm": True,
        "dnn_learning_rate": lambda step: 0.1 * 0.9**step,
    }
    train = functools.partial(wide_and_deep, optimizer, **options)
    assert_same(served(3, train), train())


class Embedded(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(40, 3, sparse=True)
        self.out = nn.Linear(3, 1)

    def forward(self, features):
        # Ids that are in no feature as they are: rows are fetched when they are read.
        return self.out(self.table(features["ids"] % 40) + self.table(features["ids"]))


def embedded_model(features, labels, mode):
    network = Embedded()
    network.table.weight.is_row_table = True
    network.out.bias.requires_grad_(False)
    network.register_buffer("steps", torch.zeros(1))
    named = {n: p for n, p in network.named_parameters() if p.requires_grad}
    return EstimatorSpec(
        mode,
        network=network,
        loss=squared_error,
        optimizer=make_optimizers([("table*", "adam"), ("*", "momentum")], named, 0.05),
    )


def ids_fn():
    ids = np.random.default_rng(2).integers(0, 40, N_ROWS)
    return ArrayDataset(
        {"ids": ids}, np.sin(ids).astype("f4"), batch_size=8, num_epochs=9
    )


def softmax_model(features, labels, mode):
    head = SampledSoftmaxHead(n_classes=50, num_sampled=5)
    network = nn.Sequential(nn.Linear(3, 4), head.output_layer(4))
    made = make_optimizer("adagrad", network.named_parameters(), 0.05)
    return head.create_estimator_spec(
        features=features, mode=mode, network=network, labels=labels, optimizer=made
    )


def classes_fn():
    x, y = data()
    labels = np.abs(y * 7).astype(int) % 50
    return ArrayDataset(x, labels, batch_size=8, num_epochs=3)


@pytest.mark.parametrize(
    ("model_fn", "fn"), [(embedded_model, ids_fn), (softmax_model, classes_fn)]
)
def test_rows_are_fetched_when_code_reads_them(served, model_fn, fn):
    train = functools.partial(trained, model_fn, fn=fn)
    assert_same(served(3, train), train())


@pytest.fixture
def replayed(monkeypatch):
    """Return a list of one entry for every step that is replayed."""
    steps, take = [], Program.__call__

    def count(program, *tensors):
        steps.append(program)
        return take(program, *tensors)

    monkeypatch.setattr(Program, "__call__", count)
    return steps


@pytest.mark.parametrize("num_ps", [1, 2])
def test_steps_are_replayed_with_the_same_numbers(served, replayed, num_ps):
    def train(execution):
        return served(
            num_ps,
            lambda: wide_and_deep(
                "adam", dnn_dropout=0.2, batch_norm=True, execution=execution
            ),
        )

    expected = train("eager")
    assert replayed == []
    assert_same(train("graph"), expected)
    assert len(replayed) >= 8


class Gradients(Hook):
    def __init__(self):
        self.seen = []

    def after_backward(self, run):
        self.seen += [p.grad.clone() for p in run.network.parameters()]


def test_hooks_see_gradients_and_may_change_them(served):
    def train():
        hook = Gradients()
        estimator = Estimator(dense_model("adam"), config=RunConfig(random_seed=3))
        estimator.train(input_fn, steps=4, hooks=[hook])
        return hook.seen, estimator.checkpoint

    seen, found = served(2, train)
    expected_seen, expected = train()
    assert all(map(torch.equal, seen, expected_seen))
    assert_same(found, expected)


def test_the_chief_logs_what_the_servers_know(served, caplog):
    config = RunConfig(log_step_count_steps=4)
    model = Estimator(dense_model("sgd"), config=config)
    with caplog.at_level(logging.INFO, "skest"):
        served(2, lambda: model.train(input_fn, steps=9))
    lines = [r.getMessage() for r in caplog.records if "staleness" in r.getMessage()]
    assert [line.partition(": ")[0] for line in lines] == ["step 4", "step 8"]
    assert all(": 1 at work, " in line and "staleness 0.00" in line for line in lines)


def test_scores_in_training_are_those_of_one_process(served):
    rng = np.random.default_rng(0)
    words = np.array([f"v{i}" for i in rng.integers(300, size=600)], dtype=object)
    X = {"c": words, "x": rng.normal(size=600).astype(np.float32)}

    def train():
        word = fc.categorical_column_with_hash_bucket("c", 500)
        model = DNNLinearCombinedClassifier(
            dnn_feature_columns=[fc.embedding_column(word, 4), fc.numeric_column("x")],
            linear_feature_columns=[word],
            dnn_hidden_units=(8,),
            dnn_optimizer="adagrad",
            dnn_learning_rate=0.05,
            max_iter=4,
            random_state=0,
            early_stopping=True,
            batch_size=32,
        )
        model.fit(X, X["x"] > 0)
        return model.validation_scores_, model.loss_curve_, model.n_steps_

    assert served(2, train) == train()
