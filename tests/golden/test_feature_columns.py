# SPDX-License-Identifier: Apache-2.0
"""Feature columns give the numbers of ``tf.feature_column``.

TensorFlow hashes strings with FarmHash, skest with MurmurHash. Here FarmHash is put in
its place, so that buckets, the chain of a cross, its order and the modulo are compared
for strings, too.
"""

from pathlib import Path

import numpy as np
import pytest
import scipy.sparse
import torch

from skest import feature_columns as fc
from skest.feature_columns import categorical as hashing
from tests.golden import _cases

PARSING = "skest has no tf.Example protocol buffers"
NOT_APPLICABLE = {
    "numeric/parse_no_default_missing": PARSING,
    "identity/parse": PARSING,
    "vocab_list/parse": PARSING,
    "mix/parse_spec": PARSING,
}
# Cases of which some rows differ by design: the rows that are equal, and why.
EQUAL_ROWS = {
    "bucketized/edges": (slice(0, 7), "infinity is refused"),
    "linear/crossed": (slice(0, 2), "a dense '' is missing and gives no cross"),
}
# ValueError stands for TensorFlow's own errors too, TypeError for a wrong type.
ERRORS = {
    "numeric/wrong_width": (ValueError, r"'x' must have shape \(3,\); got \(2,\)"),
    "numeric/string_input": (ValueError, "'x' must hold numbers; got the string '1'"),
    "numeric/sparse_input": (TypeError, "'x' is a sparse matrix"),
    "numeric/err_shape_zero": (ValueError, "'shape' of numeric column 'x'"),
    "bucketized/err_unsorted": (ValueError, "must be finite and sorted"),
    "bucketized/err_duplicate_boundaries": (ValueError, "must be finite and sorted"),
    "bucketized/err_no_boundaries": (ValueError, "must be a non-empty list of numbers"),
    "bucketized/err_2d_source": (ValueError, r"one dimension; got \(2, 2\)"),
    "identity/out_of_range_no_default_embedding": (ValueError, "'c' holds 4, .*=4"),
    "identity/out_of_range_no_default_linear": (ValueError, "'c' holds 4, .*=4"),
    "identity/err_default_range": (ValueError, "'default_value' of identity .* 'c'"),
    "identity/err_float_input": (ValueError, "'c' holds floats of a NumPy array"),
    "identity/err_string_input": (ValueError, "'c' must hold integers .* string '1'"),
    "vocab_list/err_duplicates": (ValueError, "no duplicates; got 'a'"),
    "vocab_list/err_oov_and_default": (ValueError, "both 'num_oov_buckets' and"),
    "vocab_list/err_int_input_string_vocab": (ValueError, "'string' .*'int64'"),
    "vocab_list/err_dtype_mismatch": (ValueError, "'dtype' of vocabulary column 'c'"),
    "vocab_file/err_size_too_large": (ValueError, "has 3 lines, but 5 are expected"),
    "crossed/err_hash_bucket_column_key": (ValueError, "the hash bucket column 'b'"),
    "embedding/err_dimension_0": (ValueError, "'dimension' .* at least 1; got 0"),
    "embedding/err_combiner": (ValueError, "'combiner' .* 'mean', .*; got 'max'"),
    "embedding/err_of_numeric": (TypeError, "'categorical_column' .* EmbeddingColumn"),
    "order/duplicate_names": (ValueError, "Two feature columns have the name 'x'"),
    "mix/categorical_in_dense_features": (ValueError, "'c' is categorical .* it in"),
    "mix/batch_mismatch": (ValueError, "column 'x' has 2 and column 'y' has 1"),
    "weighted/shape_mismatch": (ValueError, "'w' has no weight .* row 1 .* of 'c'"),
    "shared/err_different_vocab": (ValueError, "number of ids; got 3 and 4"),
    "linear/err_combiner": (ValueError, "'sparse_combiner' .*; got 'max'"),
    "linear/err_empty": (ValueError, "must be a non-empty list of feature columns"),
}

NORMALIZERS = {
    "x*2+1": lambda x: x * 2 + 1,
    "log1p": np.log1p,
    "(x-3)/2": lambda x: (x - 3) / 2,
}


def farmhash_fingerprint64(text):
    """FarmHash Fingerprint64 of at most 7 bytes of UTF-8."""
    data, mask = text.encode(), 2**64 - 1
    k0, k2 = 0xC3A5C85C97CB3127, 0x9AE16A3B2F90404F
    n = len(data)

    def word(start, size):
        return int.from_bytes(data[start : start + size], "little")

    def mixed(u, v, factor):
        a = ((u ^ v) * factor) & mask
        a ^= a >> 47
        b = ((v ^ a) * factor) & mask
        b ^= b >> 47
        return (b * factor) & mask

    factor = (k2 + 2 * n) & mask
    if n >= 8:
        raise ValueError(f"{text!r} has more than 7 bytes.")
    if n >= 4:
        return mixed(n + (word(0, 4) << 3), word(n - 4, 4), factor)
    if n == 0:
        return k2
    y = data[0] + (data[n >> 1] << 8)
    z = n + (data[-1] << 2)
    value = (y * k2 & mask) ^ (z * k0 & mask)
    return ((value ^ value >> 47) * k2) & mask


@pytest.fixture(autouse=True)
def farmhash(monkeypatch):
    def fingerprints(values, seed=0):
        return np.array([farmhash_fingerprint64(v) for v in values], dtype=np.uint64)

    monkeypatch.setattr(hashing, "string_hashes", fingerprints)
    monkeypatch.setattr(hashing, "string_to_int64keys", fingerprints)


def build_all(specs):
    """The columns of specifications of the golden file; shared ones are several."""
    columns = []
    for spec in specs:
        if spec["kind"] == "shared_embeddings":
            columns += fc.shared_embeddings(build_all(spec["of"]), **table_of(spec))
        else:
            columns.append(build(spec))
    return columns


def table_of(spec):
    """Dimension and initializer that give the table of the specification, if it has one."""
    if "table" not in spec:
        return {"dimension": spec["dimension"]}
    table = torch.tensor(spec["table"])
    return {
        "dimension": spec.get("dimension", table.shape[-1]),
        "initializer": lambda weights, _: weights.copy_(table),
    }


@pytest.fixture(autouse=True)
def folder_for_files(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)


def build(spec):
    """The column of a specification of the golden file."""
    if isinstance(spec, str):
        return spec
    options = {k: v for k, v in spec.items() if k not in ("kind", "of", "table")}
    source = build(spec["of"]) if "of" in spec else None
    kind = spec["kind"]
    if kind == "numeric":
        if "normalizer" in options:
            options["normalizer"] = NORMALIZERS[options["normalizer"]]
        return fc.numeric_column(**options)
    if kind == "bucketized":
        return fc.bucketized_column(source, **options)
    if kind == "crossed":
        keys = [build(key) for key in options.pop("keys")]
        return fc.crossed_column(keys, **options)
    if kind == "vocabulary_file":
        path = Path(f"{options['key']}.txt")
        path.write_text("\n".join(options.pop("file_lines")) + "\n")
        options["vocabulary_file"] = path
    if kind == "indicator":
        return fc.indicator_column(source, **options)
    if kind == "embedding":
        return fc.embedding_column(source, **options | table_of(spec))
    if kind == "weighted":
        return fc.weighted_categorical_column(source, **options)
    return getattr(fc, f"categorical_column_with_{kind}")(**options)


def features(case):
    """Raw input: TensorFlow's sparse cells are padded with what means missing."""

    def dense(key, value):
        if not isinstance(value, _cases.Sparse):
            return value
        padding = "" if value.values.dtype == object else -1
        if key == "w":  # of weights
            padding = np.nan
        elif value.values.dtype.kind == "f":
            shape = value.dense_shape
            return scipy.sparse.coo_array(
                (value.values, value.indices.T), shape
            ).tocsr()
        padded = np.full(value.dense_shape, padding, dtype=value.values.dtype)
        padded[tuple(value.indices.T)] = value.values
        return padded

    return {key: dense(key, v) for key, v in _cases.decode(case["inputs"]).items()}


def run(case):
    config, raw = case["config"], features(case)
    columns = fc.FeatureColumns(build_all(config["columns"]))
    rows, _ = EQUAL_ROWS.get(case["id"], (slice(None), ""))
    encoded = columns.encode({key: value[rows] for key, value in raw.items()})
    if case["component"] == "dense_features":
        module = fc.DenseFeatures(columns)
    elif case["component"] == "linear_model":
        module = fc.LinearFeatures(columns, config["units"], config["sparse_combiner"])
        set_weights(module, _cases.decode(config["weights"]))
    else:
        return columns, encoded
    return columns, encoded, module(encoded).detach().numpy()


def set_weights(module, weights):
    parameters = module.column_parameters()
    for name, value in weights.items():
        column = name.removeprefix("linear_model/").removesuffix("/weights")
        target = module.bias if column == "bias_weights" else parameters.pop(column)
        target.data = torch.from_numpy(value)


def assert_close(actual, case, expected):
    rows, _ = EQUAL_ROWS.get(case["id"], (slice(None), ""))
    np.testing.assert_allclose(
        actual, _cases.decode(expected)[rows], rtol=_cases.RTOL, atol=_cases.ATOL
    )


RUN = _cases.cases("feature_columns", NOT_APPLICABLE)


@_cases.groups(RUN)
def test_columns(cases):
    _cases.check_each(cases, check_case)


def check_case(case):
    expected = case["expected"]
    if "error" in expected:
        error, message = ERRORS[case["id"]]
        with pytest.raises(error, match=message):
            run(case)
        return
    if case["component"] == "categorical_ids":
        columns, encoded = run(case)
        check_ids(columns.active[0], encoded, expected)
        return
    columns, encoded, output = run(case)
    assert sorted(c.name for c in columns.active) == expected["column_order"]
    if case["component"] == "linear_model":
        assert_close(output, case, expected["logits"])
        return
    assert_close(output, case, expected["output"])
    for column in columns.active:
        assert column.size == np.prod(expected["variable_shapes"][column.name])
        alone = fc.DenseFeatures([column])(encoded)
        assert_close(alone.detach().numpy(), case, expected["per_column"][column.name])


def check_ids(column, encoded, expected):
    assert column.name == expected["column_name"]
    assert column.num_buckets == expected["num_buckets"]
    sparse = _cases.decode(expected["ids"])
    ids = np.full(sparse.dense_shape, -1)
    ids[tuple(sparse.indices.T)] = sparse.values
    np.testing.assert_array_equal(encoded[column.encoded_key], ids)


def test_every_case_is_run_or_listed():
    _cases.account_for_all_cases("feature_columns", RUN, NOT_APPLICABLE)
    assert set(EQUAL_ROWS) | set(ERRORS) <= {case["id"] for case in RUN}


def test_rows_left_out_differ_by_design():
    edges, crossed = (
        next(c for c in _cases.load("feature_columns") if c["id"] == case_id)
        for case_id in EQUAL_ROWS
    )
    with pytest.raises(ValueError, match="'x' holds inf"):
        build(edges["config"]["columns"][0]).encode(features(edges))
    column = build(crossed["config"]["columns"][0])
    assert column.encode(features(crossed))["a_X_b_ids"][2] == -1
