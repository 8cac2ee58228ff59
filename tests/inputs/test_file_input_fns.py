# SPDX-License-Identifier: Apache-2.0
import datetime
import decimal
import gzip
import subprocess
import sys
import threading
from functools import partial

import cloudpickle
import numpy as np
import pandas as pd
import pytest
import torch

from skest import Estimator, EstimatorSpec, RunConfig
from skest import feature_columns as fc
from skest.canned.dnn import dnn_model_fn
from skest.heads import BinaryClassHead
from skest.inputs import InputContext, csv_input_fn, parquet_input_fn

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

N = 1000


def frame(start=0, n=N):
    i = np.arange(start, start + n)
    return pd.DataFrame(
        {"i": i, "x": i / 2, "word": [f"w{v % 7}" for v in i], "y": i % 2}
    )


@pytest.fixture
def files(tmp_path):
    """Three files of 400, 350 and 250 rows, in groups of at most 100."""
    for name, start, n in (("a", 0, 400), ("b", 400, 350), ("c", 750, 250)):
        table = frame(start, n)
        table.to_parquet(tmp_path / f"{name}.parquet", row_group_size=100)
        table.to_csv(tmp_path / f"{name}.csv", index=False)
    return tmp_path


READERS = {"parquet": parquet_input_fn, "csv": csv_input_fn}
each_format = pytest.mark.parametrize("suffix", sorted(READERS))


def make(folder, suffix, **options):
    options = {"batch_size": 64, "shuffle": False} | options
    return READERS[suffix](str(folder / f"*.{suffix}"), **options)


def column(batches, name="i"):
    return np.concatenate([features[name] for features in batches])


# Rows and their order


@each_format
def test_all_rows_in_order(files, suffix):
    for batch_size in [64, 333, 5000]:
        batches = list(make(files, suffix, batch_size=batch_size)())
        assert {len(batch["i"]) for batch in batches[:-1]} <= {batch_size}
        for name, expected in frame().items():
            values = column(batches, name)
            assert values.dtype == (object if name == "word" else expected.dtype)
            assert values.tolist() == expected.tolist()


@each_format
@pytest.mark.parametrize(("buffer", "batch_size"), [(1, 64), (150, 7), (10_000, 64)])
def test_shuffling_is_a_permutation_of_every_epoch(files, suffix, buffer, batch_size):
    options = {"shuffle": True, "shuffle_buffer": buffer, "seed": 1, "num_epochs": 2}
    batches = list(make(files, suffix, batch_size=batch_size, **options)())
    sizes = [len(batch["i"]) for batch in batches]
    n_full, rest = divmod(N, batch_size)
    assert sizes == 2 * (n_full * [batch_size] + [rest])
    order = column(batches)
    assert (np.sort(order.reshape(2, N)) == np.arange(N)).all()
    assert not (order[:N] == order[N:]).all()
    assert not (order[:N] == np.arange(N)).all()
    again = list(make(files, suffix, batch_size=batch_size, **options)())
    assert (column(again) == order).all()
    assert [f"w{i % 7}" for i in order] == column(batches, "word").tolist()


@each_format
@pytest.mark.parametrize(
    ("shuffle_buffer", "prefetch"), [(None, 2), (130, 0), (130, 2)]
)
def test_resuming_equals_the_uninterrupted_run(files, suffix, shuffle_buffer, prefetch):
    options = {"num_epochs": 2, "prefetch": prefetch, "batch_size": 90}
    if shuffle_buffer:
        options |= {"shuffle": True, "shuffle_buffer": shuffle_buffer}
    first = make(files, suffix, **options)()
    batches = [batch["i"].tolist() for batch in first]
    for n in (0, 1, 5, 11, 12, 13, 23, 24, 30):
        again = make(files, suffix, **options)().resumed(n, first.seeds)
        assert [batch["i"].tolist() for batch in again] == batches[n:]


# Shards


@pytest.mark.parametrize(
    ("suffix", "unit"), [("parquet", "11 row group"), ("csv", "3 f")]
)
def test_more_workers_than_parts_are_refused(files, suffix, unit):
    with pytest.raises(ValueError, match=rf"12 workers can't share {unit}.*Use fewer"):
        make(files, suffix)(input_context=InputContext(12, 0))


# Columns


def write(folder, **columns):
    pq.write_table(pa.table(columns), folder / "t.parquet")
    return folder / "t.parquet"


def read(path, **options):
    (batch,) = parquet_input_fn(path, 100, shuffle=False, **options)()
    return batch


DAY = datetime.date(2024, 2, 29)


def test_types_of_columns(tmp_path):
    for array, dtype, values in [
        (pa.array([1.5, None]), "float64", [1.5, np.nan]),
        (pa.array([1.5, None], pa.float32()), "float32", [1.5, np.nan]),
        (pa.array([1, 2], pa.int8()), "int8", [1, 2]),
        (pa.array([2**62 + 1, None]), "Int64", [2**62 + 1, pd.NA]),
        (pa.array([1, None], pa.uint16()), "UInt16", [1, pd.NA]),
        (pa.array([True, False]), "bool", [True, False]),
        (pa.array([True, None]), "boolean", [True, pd.NA]),
        (pa.array(["a", None]), "object", ["a", None]),
        (pa.array(["a", "b"], pa.large_string()), "object", ["a", "b"]),
        (pa.array(["a", None, "a"]).dictionary_encode(), "object", ["a", None, "a"]),
        (pa.array([7, None]).dictionary_encode(), "Int64", [7, pd.NA]),
        (pa.array([b"a"]), "object", [b"a"]),
        (pa.array([None, None]), "object", [None, None]),
        (pa.array([decimal.Decimal("1.25"), None]), "float64", [1.25, np.nan]),
        (pa.array([DAY]), "datetime64[D]", [DAY]),
        (
            pa.array([[1, 2], [3, 4]], pa.list_(pa.int64(), 2)),
            "int64",
            [[1, 2], [3, 4]],
        ),
    ]:
        batch = read(write(tmp_path, c=array))
        assert str(batch["c"].dtype) == dtype
        pd.testing.assert_series_equal(
            pd.Series(batch["c"].tolist(), dtype=object),
            pd.Series(values, dtype=object),
        )


def test_types_that_no_column_reads(tmp_path):
    for array in [pa.array([{"a": 1}]), pa.array([datetime.time(1)])]:
        path = write(tmp_path, c=array, x=[1])
        with pytest.raises(TypeError, match=r"Column 'c' has .* out with 'columns'"):
            read(path)
        assert read(path, columns=["x"])["x"].tolist() == [1]


def test_columns_and_labels(files):
    batch, labels = next(iter(make(files, "parquet", columns=["x"], label="y")()))
    assert list(batch) == ["x"]
    assert labels[:3].tolist() == [0, 1, 0]
    batch, labels = next(iter(make(files, "parquet", label=["y", "x"])()))
    assert list(batch) == ["i", "word"]
    assert {name: len(values) for name, values in labels.items()} == {"y": 64, "x": 64}


def test_csv_types_and_delimiters(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("zip;n;s\n01234;1;a\n00001;;\n")
    (batch,) = csv_input_fn(
        path, shuffle=False, delimiter=";", column_types={"zip": "string"}
    )()
    assert batch["zip"].tolist() == ["01234", "00001"]
    assert batch["n"].tolist() == [1, pd.NA]
    assert batch["s"].tolist() == ["a", None]


def test_csv_gaps_are_those_of_pandas(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text('s,n\nNA,1\n"NA",NA\nNone,nan\n6" pipe,4\n"",<NA>\n')
    (batch,) = csv_input_fn(path, shuffle=False)()
    expected = pd.read_csv(path)
    assert [s is not None for s in batch["s"]] == expected["s"].notna().tolist()
    assert batch["s"][3] == expected["s"][3] == '6" pipe'
    assert pd.isna(batch["n"]).tolist() == expected["n"].isna().tolist()
    with pytest.raises(ValueError, match="Column 's' is the label and has 4 missing"):
        list(csv_input_fn(path, label="s", shuffle=False)())


@pytest.mark.parametrize("suffix", [".csv", ".csv.gz"])
def test_cells_of_several_lines_beyond_a_block(tmp_path, suffix):
    table = pd.DataFrame({"x": np.arange(200_000)})
    rng = np.random.default_rng(5)
    table["s"] = np.where(rng.random(200_000) < 0.3, "two\nlines, of text", "one line")
    table.loc[199_999, "s"] = "two\nlines"
    path = tmp_path / f"t{suffix}"
    table.to_csv(path, index=False)
    batches = list(csv_input_fn(path, 50_000, shuffle=False)())
    assert np.concatenate([b["s"] for b in batches]).tolist() == table["s"].tolist()


@pytest.mark.parametrize("columns", [None, ["x"]])
@pytest.mark.parametrize("end", ["\n", "\r"])
@pytest.mark.parametrize("suffix", [".csv", ".csv.gz"])
def test_a_quote_that_is_never_closed(tmp_path, columns, end, suffix):
    path = tmp_path / f"t{suffix}"
    lines = ["x,s", *["1,a"] * 9, '2,"6 inch', *["3,a"] * 9]
    opened = gzip.open if suffix == ".csv.gz" else open
    with opened(path, "wt", newline="") as file:
        file.write(end.join(lines))
    with pytest.raises(ValueError, match="column 's' in row 10, '6 inch.*never closed"):
        list(csv_input_fn(path, columns=columns, shuffle=False)())


def test_csv_headers(tmp_path):
    path = tmp_path / "t.csv"
    path.write_bytes("größe\n1\n".encode("latin-1"))
    with pytest.raises(
        ValueError, match="The header of .* not written as utf-8.*encod"
    ):
        csv_input_fn(path, shuffle=False)
    path.write_text("a,b,a\n1,2,x\n")
    with pytest.raises(ValueError, match="two columns 'a'"):
        csv_input_fn(path, shuffle=False)


def test_csv_encodings(tmp_path):
    path = tmp_path / "t.csv"
    path.write_bytes("s\nZürich\n".encode("latin-1"))
    with pytest.raises(
        ValueError, match="Column 's' of .* not written as utf-8.*encod"
    ):
        csv_input_fn(path, shuffle=False)
    (batch,) = csv_input_fn(path, shuffle=False, encoding="latin-1")()
    assert batch["s"].tolist() == ["Zürich"]
    path.write_bytes("x,s,s\n1,a,Zürich\n".encode("latin-1"))
    (batch,) = csv_input_fn(path, columns=["x"], shuffle=False)()
    assert batch["x"].tolist() == [1]


def test_types_that_files_have_in_common(tmp_path):
    for name, ids, words in (
        ("a", np.int32([1, 2]), [None, None]),
        ("b", np.array([3, 4]), ["u", "v"]),
        ("c", [5.5, None], pd.Categorical(["u", "v"])),
    ):
        table = pd.DataFrame({"i": ids, "s": words})
        table.to_parquet(tmp_path / f"{name}.parquet")
        table.to_csv(tmp_path / f"{name}.csv", index=False)
    for suffix in READERS:
        (batch,) = make(tmp_path, suffix)()
        np.testing.assert_array_equal(batch["i"], [1, 2, 3, 4, 5.5, np.nan])
        assert batch["s"].tolist() == [None, None, "u", "v", "u", "v"]
    # In CSV files, all values are texts in the first place.
    (tmp_path / "d.csv").write_text("i,s\nA7,2024-01-01\n")
    (batch,) = make(tmp_path, "csv")()
    assert batch["i"].tolist() == ["1", "2", "3", "4", "5.5", None, "A7"]


def test_csv_files_reach_workers_of_their_own(tmp_path):
    for name in "ab":
        frame().to_csv(tmp_path / f"{name}.csv", index=False)
    read = cloudpickle.dumps(make(tmp_path, "csv"))
    program = (
        "import pickle, sys; f = pickle.load(sys.stdin.buffer); print(len(list(f())))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], input=read, capture_output=True, check=True
    )
    assert int(done.stdout) == 32


# What is refused


@each_format
@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"label": "z"}, ValueError, "Column 'z' is not in .*a.*, which has 'i', 'x'"),
        ({"label": "Word"}, ValueError, "Did you mean 'word'"),
        ({"columns": ["i", "q"]}, ValueError, "Column 'q' is not in"),
        ({"columns": ["i", "i"]}, ValueError, r"'columns' names a column twice"),
        ({"columns": [1]}, TypeError, "'columns' must hold names of columns; got 1"),
        ({"label": ["i", "x", "word", "y"]}, ValueError, "no column besides the label"),
        ({"shuffle": None}, ValueError, "'shuffle' must be True .* got None"),
        ({"batch_size": 0}, ValueError, "'batch_size' of .*_input_fn must be"),
        ({"shuffle_buffer": 0}, ValueError, "'shuffle_buffer' of .*_input_fn must"),
        ({"num_epochs": 1.5}, TypeError, "'num_epochs' of .*_input_fn must be"),
        ({"prefetch": -1}, ValueError, "'prefetch' of .*_input_fn must be"),
    ],
)
def test_arguments(files, suffix, options, error, message):
    with pytest.raises(error, match=message):
        make(files, suffix, **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"delimiter": ";;"}, "'delimiter' must be one character; got ';;'"),
        (
            {"encoding": "klingon"},
            "'encoding' is 'klingon', which is none of texts",
        ),
        ({"column_types": {"words": "string"}}, "'words' is not .* mean 'word'"),
        (
            {"column_types": {"word": "text"}},
            "'word' the type 'text', which Arrow does",
        ),
    ],
)
def test_arguments_of_csv(files, options, message):
    with pytest.raises(ValueError, match=message):
        make(files, "csv", **options)


@each_format
def test_no_files(tmp_path, suffix):
    with pytest.raises(FileNotFoundError, match=r"No file .* .*\*.*current folder"):
        make(tmp_path, suffix)
    with pytest.raises(FileNotFoundError, match="It is a folder; .* a pattern such as"):
        READERS[suffix](tmp_path, shuffle=False)
    with pytest.raises(ValueError, match="'paths' is empty"):
        READERS[suffix]([], shuffle=False)


def test_files_with_other_columns_are_named(files):
    frame().drop(columns="y").to_parquet(files / "d.parquet")
    with pytest.raises(ValueError, match=r"Column 'y' is not in '.*d\.parquet', which"):
        make(files, "parquet")
    assert len(column(make(files, "parquet", columns=["x"])(), "x")) == 2 * N
    frame().astype({"y": bool}).to_parquet(files / "d.parquet")
    with pytest.raises(
        ValueError, match=r"'y' is int64 in .* '.*a\.parquet', but bool in '.*d\.par"
    ):
        make(files, "parquet")
    frame().drop(columns="y").to_csv(files / "d.csv", index=False)
    with pytest.raises(ValueError, match=r"Column 'y' is not in '.*d\.csv', which"):
        make(files, "csv")


@each_format
def test_files_without_rows(tmp_path, suffix):
    for name in "ab":
        empty, path = frame(n=0), tmp_path / f"{name}.{suffix}"
        empty.to_parquet(path) if suffix == "parquet" else empty.to_csv(
            path, index=False
        )
    if suffix == "parquet":
        with pytest.raises(ValueError, match=r"The 2 file\(s\) from .* hold no rows"):
            make(tmp_path, suffix)
    else:
        assert list(make(tmp_path, suffix, num_epochs=None)()) == []
    frame().to_parquet(tmp_path / "c.parquet")
    assert len(column(make(tmp_path, "parquet")())) == N


@each_format
def test_damaged_files(tmp_path, suffix):
    path = tmp_path / f"t.{suffix}"
    path.touch()
    with pytest.raises(ValueError, match="can't be read: it is empty, without .* a h"):
        READERS[suffix](path, shuffle=False)
    if suffix == "parquet":
        path.write_text("text")
        with pytest.raises(ValueError, match=r"t\.parquet' can't be read"):
            parquet_input_fn(path, shuffle=False)


@pytest.mark.parametrize("n_rows", [9, 100_000])
def test_compressed_files_that_were_cut_off(tmp_path, n_rows):
    """Of a large one, the beginning can be read."""
    path = tmp_path / "t.csv.gz"
    pd.DataFrame({"x": np.random.default_rng(0).normal(size=n_rows)}).to_csv(path)
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(
        OSError, match=r"t\.csv\.gz' can't be read: .*Truncated .*again"
    ):
        list(csv_input_fn(path, shuffle=False, num_epochs=1)())


@pytest.mark.parametrize("prefetch", [0, 2])
def test_a_value_of_another_type_than_the_file_began_with(tmp_path, prefetch):
    (tmp_path / "a.csv").write_text("x\n1\n2\n")
    (tmp_path / "b.csv").write_text("x\n" + "1\n" * 600_000 + "hello\n")
    input_fn = make(tmp_path, "csv", prefetch=prefetch)
    with pytest.raises(
        ValueError, match=r"b\.csv' can't be read.*hello.*'column_types'"
    ):
        list(input_fn())
    input_fn = make(tmp_path, "csv", column_types={"x": "string"}, prefetch=prefetch)
    assert column(input_fn(), "x")[[0, -1]].tolist() == ["1", "hello"]
    assert not [t for t in threading.enumerate() if t.name == "skest-prefetch"]


def test_missing_labels(tmp_path):
    path = write(tmp_path, x=[1.0, 2.0], y=pa.array([1, None]))
    with pytest.raises(ValueError, match="Column 'y' is the label and has 1 missing"):
        read(path, label="y")


@each_format
def test_without_pyarrow(monkeypatch, files, suffix):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ImportError, match="needs pyarrow. .*pip install pyarrow"):
        make(files, suffix)


# Training


WORD = fc.categorical_column_with_vocabulary_list("word", [f"w{i}" for i in range(7)])
COLUMNS = fc.FeatureColumns(
    [
        ("x", fc.numeric_column("x", normalizer=lambda x: (x - 250) / 150)),
        ("word", fc.embedding_column(WORD, 2)),
    ]
)


def canned(model_dir=None, dropout=0.1):
    """A canned model whose columns need no fit."""
    model_fn = partial(
        dnn_model_fn,
        head=BinaryClassHead(),
        columns=COLUMNS,
        hidden_units=[8],
        dropout=dropout,
    )
    config = RunConfig(model_dir, random_seed=0, save_checkpoints_steps=10)
    return Estimator(model_fn, config=config)


@each_format
def test_a_canned_model_trains_out_of_core(files, suffix):
    train = make(
        files, suffix, label="y", shuffle=True, shuffle_buffer=300, num_epochs=2
    )
    evaluate = make(files, suffix, label="y")
    estimator = canned().train(train)
    assert estimator.checkpoint.global_step == 2 * 16
    assert estimator.evaluate(evaluate)["average_loss"] < 1
    predictions = list(estimator.predict(make(files, suffix, columns=["x", "word"])))
    assert len(predictions) == N
    assert not [t for t in threading.enumerate() if t.name == "skest-prefetch"]


@each_format
def test_pieces_are_encoded_as_their_batches_are(files, suffix):
    """What a user does to batches on the way counts."""
    plain = make(files, suffix, label="y", shuffle=True, seed=0, batch_size=48)

    def mapped():
        return plain().map(lambda batch: batch)

    def halved():
        for features, labels in plain():
            features["x"] = features["x"] / 2
            yield features, labels

    def halved_in_map():
        return plain().map(
            lambda batch: (batch[0].update(x=batch[0]["x"] / 2), batch)[1]
        )

    a, b, c, d = (
        canned(dropout=0.0).train(f).evaluate(make(files, suffix, label="y"))
        for f in (plain, mapped, halved, halved_in_map)
    )
    assert a == b
    assert c == d
    assert a["loss"] != c["loss"]


@pytest.mark.parametrize("kind", ["sparse", "scalar", "bags", "long"])
def test_batches_that_cannot_be_cut_from_a_piece(files, kind):
    """As of a model function of the user's: each batch is encoded by itself."""

    def encode(features):
        x = torch.tensor(features["x"], dtype=torch.float32)[:, None]
        sizes.append(len(x))
        if kind == "sparse":
            return {"x": x, "more": x.to_sparse()}
        if kind == "scalar":
            return {"x": x, "more": torch.tensor(len(x))}
        if kind == "bags":
            return {"x": x, "more": torch.zeros(2 * len(x))}
        return {"x": x, "more": torch.zeros(len(x), 2000)}

    def model_fn(features, labels, mode):
        network = torch.nn.Linear(1, 1)
        return EstimatorSpec(
            mode,
            network=FirstOnly(network),
            encode=encode,
            loss=lambda y, z, x: (z[:, 0] - y).square().mean(),
            optimizer=torch.optim.SGD(network.parameters(), lr=1e-9),
        )

    sizes = []
    Estimator(model_fn).train(make(files, "parquet", label="y", batch_size=50))
    assert sizes.count(50) >= 20


class FirstOnly(torch.nn.Module):
    def __init__(self, network):
        super().__init__()
        self.network = network

    def forward(self, features):
        return self.network(features["x"])


def test_types_are_those_of_the_first_file_with_values(tmp_path):
    for i, text in enumerate(["a,b,y\n", "a,b,y\n1,,0\n", "a,b,y\n2,x,1\n"]):
        (tmp_path / f"part-{i}.csv").write_text(text)
    read = csv_input_fn(tmp_path / "*.csv", 1, label="y", shuffle=False)
    rows = [(x["a"].tolist(), x["b"].tolist(), y.tolist()) for x, y in read()]
    assert [(a, y) for a, _, y in rows] == [([1], [0]), ([2], [1])]
    assert rows[1][1] == ["x"]
