# SPDX-License-Identifier: Apache-2.0
import functools

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

from skest import Estimator, EstimatorSpec, RunConfig
from skest import feature_columns as fc
from skest.execution import assumptions
from skest.execution.known_input import holds_only_known_code, is_known_input
from skest.inputs import ArrayDataset, Pipeline, csv_input_fn, parquet_input_fn
from skest.inputs.batches import Source

pytest.importorskip("pyarrow")

TABLE = pd.DataFrame(
    {
        "x": np.linspace(-1, 1, 640),
        "city": np.array(["Oslo", "Rome"], dtype=object)[np.arange(640) % 2],
        "label": np.linspace(0, 1, 640, dtype=np.float32),
    }
)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    TABLE.to_parquet(folder / "t.parquet")
    TABLE.to_csv(folder / "t.csv", index=False)
    return folder


def read_parquet(files, **options):
    return parquet_input_fn(
        files / "t.parquet", 16, label="label", shuffle=False, num_epochs=2, **options
    )()


def read_csv(files):
    return csv_input_fn(files / "t.csv", 16, label="label", shuffle=True, seed=0)()


class OwnColumns(fc.FeatureColumns):
    pass


class Own:
    def method(self, x):
        return x

    __call__ = method


def columns(kind=fc.FeatureColumns, **options):
    city = fc.categorical_column_with_vocabulary_list("city")
    numbers = fc.numeric_column("x", **options)
    return kind([numbers, fc.embedding_column(city, 2)]).fit(TABLE)


@pytest.mark.parametrize(
    ("make", "is_known"),
    [
        (lambda: None, True),
        (lambda: columns(normalizer="standard").encode, True),
        (lambda: functools.partial(columns().encode, dtype=torch.float32), True),
        (
            lambda: {
                "a": [np.float32, np.float32(1), np.dtype("f4"), (torch.ones(2),)]
            },
            True,
        ),
        (lambda: np.array(["a", None], dtype=object), True),
        (lambda: columns(normalizer=np.tanh).encode, True),
        (lambda: columns(normalizer=np.frompyfunc(abs, 1, 1)).encode, False),
        (lambda: columns(normalizer=lambda x: x).encode, False),
        (lambda: columns(OwnColumns).encode, False),
        (lambda: functools.partial(columns().encode, dtype=Own()), False),
        (lambda: np.array([Own()], dtype=object), False),
        (lambda: Own().method, False),
        (lambda: Own, False),
        (lambda: np.vectorize(lambda x: x), False),
        (lambda: type("Str", (str,), {})("a"), False),
    ],
)
def test_what_may_call_code_of_others(make, is_known):
    assert holds_only_known_code(make()) is is_known


@pytest.mark.parametrize(
    ("read", "reads_files"),
    [
        (read_parquet, True),
        (read_csv, True),
        (lambda files: read_parquet(files, prefetch=0).repeat(2), True),
        (lambda files: read_parquet(files).map(lambda batch: batch), False),
        (
            lambda files: read_parquet(files).filter(lambda batch: True).prefetch(),
            False,
        ),
        (lambda files: Pipeline(lambda: read_parquet(files)), False),
        (lambda files: iter(read_parquet(files)), False),
        (lambda files: ArrayDataset(TABLE, batch_size=16), False),
    ],
)
def test_which_inputs_are_files_as_they_are(files, read, reads_files):
    assert Source(read(files)).reads_files is reads_files


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.factor = 1.0
        self.linear = nn.Linear(1, 1)

    def forward(self, features):
        return self.factor * self.linear(features["x"])


def mean_square(labels, logits, features):
    return (logits[:, 0] - labels).square().mean()


def train(input_fn, execution, made, encode=None):
    encode = encode or columns().encode

    def model_fn(features, labels, mode):
        torch.manual_seed(0)
        network = Network()
        made.append(network)
        optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
        return EstimatorSpec(
            mode, network=network, loss=mean_square, optimizer=optimizer, encode=encode
        )

    estimator = Estimator(model_fn, config=RunConfig(execution=execution))
    estimator.train(input_fn)
    return estimator.get_variable_value("linear.weight")


@pytest.mark.parametrize("is_mapped", [True, False])
@pytest.mark.parametrize("encodes", [True, False])
def test_only_files_as_they_are_go_unwatched(files, monkeypatch, is_mapped, encodes):
    watched = []
    fixed_parts = assumptions.fixed_parts

    def counted(spec):
        watched.append(spec)
        return fixed_parts(spec)

    monkeypatch.setattr(assumptions, "fixed_parts", counted)
    own = (lambda features: columns().encode(features)) if encodes else None

    def input_fn():
        batches = read_parquet(files)
        return batches.map(lambda batch: batch) if is_mapped else batches

    train(input_fn, "graph", [], own)
    n_steps = 80
    assert (len(watched) > n_steps) is (is_mapped or encodes)


@pytest.mark.parametrize("where", ["map", "encode"])
def test_what_code_between_steps_changes_counts(files, where):
    def trained(execution):
        made, seen = [], []

        def change(data):
            seen.append(data)
            if len(seen) == 40:
                made[-1].factor = 0.5
            return data

        def input_fn():
            batches = read_parquet(files, prefetch=0)
            return batches.map(change) if where == "map" else batches

        encode = columns().encode
        own = (lambda features: change(encode(features))) if where == "encode" else None
        return train(input_fn, execution, made, own)

    np.testing.assert_array_equal(trained("graph"), trained("eager"))


def test_a_table_is_encoded_before_the_first_step():
    spec = EstimatorSpec("eval", network=Network(), loss=mean_square, encode=Own())
    table = ArrayDataset({"x": TABLE["x"].to_numpy()}, batch_size=16)
    assert is_known_input(Source(table), spec)
    assert not is_known_input(Source([{"x": TABLE["x"].to_numpy()}]), spec)
