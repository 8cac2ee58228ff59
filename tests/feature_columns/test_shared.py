# SPDX-License-Identifier: Apache-2.0

import numpy as np
import pytest
import torch
from numpy.testing import assert_array_equal
from sklearn.exceptions import NotFittedError

from skest import feature_columns as fc

IDENTITIES = [fc.categorical_column_with_identity(key, 4) for key in ("q", "d")]
OTHERS = [fc.categorical_column_with_identity(key, 3) for key in "ab"]
LEARNED = [fc.categorical_column_with_vocabulary_list(key) for key in ("q", "d")]
X = {"q": ["b", "c", ""], "d": [["a", "a"], ["c"], []]}
TABLE = "d_q_shared_embedding"


def ids_of(column, X):
    return column.encode(X)[column.encoded_key].tolist()


def test_vocabulary_is_learned_from_all_columns():
    q, d = (column.fit(X) for column in fc.shared_embeddings(LEARNED, "auto"))
    vocabularies = [c.categorical_column_.vocabulary_ for c in (q, d)]
    assert vocabularies == [{"a": 0, "b": 1, "c": 2}] * 2
    assert list(vocabularies[0]) == ["a", "b", "c"]
    assert q.size == d.size == 8  # round(6 * 3 ** 0.25)
    assert ids_of(q, {"q": ["a", "c"]}) == ids_of(d, {"d": ["a", "c"]}) == [[0], [2]]
    assert not hasattr(LEARNED[0], "vocabulary_")
    with pytest.raises(NotFittedError, match="'q' has not learned its vocabulary"):
        fc.shared_embeddings(LEARNED, 2)[0].encode(X)


def test_an_indicator_of_the_column_alone_has_its_own_vocabulary():
    columns = fc.FeatureColumns(
        [fc.indicator_column(LEARNED[0]), *fc.shared_embeddings(LEARNED, 2)]
    )
    encoded = columns.fit(X).encode(X)
    assert encoded["q_ids"].tolist() == [[0], [1], [-1]]
    assert encoded[f"{TABLE}_q_ids"].tolist() == [[1], [2], [-1]]


def modules(columns):
    return fc.DenseFeatures(columns, generator=torch.Generator().manual_seed(0))


def test_there_is_one_table_and_its_gradient_is_the_sum():
    columns = fc.FeatureColumns(fc.shared_embeddings(IDENTITIES, 2))
    encoded = columns.encode({"q": [1, 3], "d": [[1, 0], [2, -1]]})
    module = modules(columns)
    ((name, table),) = module.named_parameters()
    assert (name, tuple(table.shape)) == (f"{TABLE}_weights", (4, 2))
    assert table.is_row_table
    by_column = module.column_parameters()
    assert by_column["q_shared_embedding"] is by_column["d_shared_embedding"] is table
    alone = modules([fc.embedding_column(column, 2) for column in IDENTITIES])
    own = alone.column_parameters()
    for parameter in own.values():
        parameter.data = table.detach().clone()
    outputs = module(encoded)
    separate = alone({key.removeprefix(f"{TABLE}_"): v for key, v in encoded.items()})
    assert torch.equal(outputs, separate)
    upstream = torch.randn(outputs.shape, generator=torch.Generator().manual_seed(1))
    for output in (outputs, separate):
        output.backward(upstream)
    assert table.grad.is_sparse
    expected = sum(parameter.grad.to_dense() for parameter in own.values())
    torch.testing.assert_close(table.grad.to_dense(), expected)


def test_transform_takes_the_learned_table():
    columns = fc.FeatureColumns(fc.shared_embeddings(LEARNED, 2)).fit(X)
    with pytest.raises(
        NotFittedError, match="'q_shared_embedding' has no vectors, .*FrozenEstimator"
    ):
        columns.transform(X)
    for column in columns.active:
        column.weights_ = np.array([[1, 2], [3, 4], [5, 6.0]])
    expected = [[3, 4, 1, 2], [5, 6, 5, 6], [0, 0, 0, 0]]
    assert_array_equal(columns.transform(X), expected)


def test_parameters_by_name():
    columns = fc.FeatureColumns(
        list(zip("qd", fc.shared_embeddings(IDENTITIES, 2), strict=True))
    )
    columns.set_params(q__dimension=3, q__combiner="sum")
    with pytest.raises(
        ValueError,
        match="'q_shared_embedding' and 'd_shared_embedding' share the table "
        "'d_q_shared_embedding' but differ in 'dimension': 3 and 2. Set it",
    ):
        columns.fit({"q": [1], "d": [1]})
    columns.set_params(d__dimension=3)
    columns.fit({"q": [1], "d": [1]})
    assert fc.DenseFeatures(columns).out_features == 6


def test_another_table_of_the_same_name():
    for first, other, parameter in [
        (
            fc.shared_embeddings(IDENTITIES, 2)[0],
            fc.shared_embeddings(IDENTITIES, 2, trainable=False)[1],
            "'d_q_shared_embedding' but differ in 'trainable': True and False",
        ),
        (
            fc.shared_embeddings(IDENTITIES, 2, shared_embedding_collection_name="t")[
                0
            ],
            fc.shared_embeddings(OTHERS, 2, shared_embedding_collection_name="t")[0],
            "'t' but differ in 'categorical_columns'",
        ),
        (
            fc.shared_embeddings(
                IDENTITIES, 2, shared_embedding_collection_name="a_embedding"
            )[0],
            fc.embedding_column(OTHERS[0], 2),
            "'a_embedding' but differ in 'categorical_column",
        ),
    ]:
        with pytest.raises(ValueError, match=f"share the table {parameter}"):
            fc.DenseFeatures([first, other])


vocabulary = fc.categorical_column_with_vocabulary_list


def test_columns_refused():
    for columns, error, message in [
        ([], ValueError, "'categorical_columns' .* non-empty list .* got \\[\\]"),
        ([LEARNED[0], "d"], TypeError, "must .* categorical or bucketized .* got 'd'"),
        (
            [LEARNED[0], IDENTITIES[1]],
            ValueError,
            "'q' and 'd' cannot share an embedding, because they are of different kinds, "
            "VocabularyListColumn and IdentityColumn",
        ),
        (
            [vocabulary("q", ["a", "b", "c"]), vocabulary("d", ["a", "c", "b"])],
            ValueError,
            "same values in another order: id 1 is 'b' in one and 'c' in the other. Give "
            "both the same 'vocabulary_list'",
        ),
        (
            [vocabulary("q", ["a"]), vocabulary("d")],
            ValueError,
            "same number of ids; got 1 and what it learns",
        ),
        (
            [vocabulary("q", min_frequency=2), vocabulary("d")],
            ValueError,
            "they differ in 'min_frequency', 2 and 1",
        ),
        (
            [
                fc.bucketized_column(fc.numeric_column(key), "quantiles:3")
                for key in "qd"
            ],
            ValueError,
            "'q_bucketized' and 'q_bucketized' cannot .* Give their 'boundaries'",
        ),
    ]:
        with pytest.raises(error, match=message):
            fc.shared_embeddings(columns, 2)


def test_parameters_refused():
    for options, error, message in [
        ({"combiner": "max"}, ValueError, "'combiner' .* got 'max'"),
        (
            {"shared_embedding_collection_name": ""},
            TypeError,
            "'shared_embedding_collection_name' .* non-empty string or None; got ''",
        ),
        ({"position": 2}, ValueError, "'position' .* from 0 to 1; got 2"),
    ]:
        column = fc.shared_embeddings(IDENTITIES, 2)[0].set_params(**options)
        with pytest.raises(error, match=message):
            column.encode({"q": [1]})


def test_strings_and_integers():
    columns = fc.FeatureColumns(fc.shared_embeddings(LEARNED, 2))
    with pytest.raises(ValueError, match="'q' holds strings and 'd' integers"):
        columns.fit({"q": ["a"], "d": [1]})
