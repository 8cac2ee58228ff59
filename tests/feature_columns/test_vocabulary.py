# SPDX-License-Identifier: Apache-2.0

import pickle

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_array_equal
from sklearn.base import clone

from skest import DNNClassifier
from skest.feature_columns import (
    FeatureColumns,
    categorical_column_with_vocabulary_file,
    categorical_column_with_vocabulary_list,
    embedding_column,
    indicator_column,
    sequence_categorical_column_with_vocabulary_file,
)


def ids(column, values):
    return column.encode({"c": values})["c_ids"].tolist()


def test_the_empty_string_is_missing_even_in_the_vocabulary():
    strings = categorical_column_with_vocabulary_list("c", ["", "a"])
    assert ids(strings, ["", "a"]) == [[-1], [1]]


def test_a_value_with_the_name_of_a_bucket():
    column = categorical_column_with_vocabulary_list(
        "c", ["oov0", "_oov1", "a"], num_oov_buckets=2
    )
    names = column.get_feature_names_out().tolist()
    assert names == ["c_oov0", "c__oov1", "c_a", "c___oov0", "c___oov1"]
    column.set_output(transform="polars")
    assert column.transform({"c": ["oov0"]}).columns == names


def test_learned():
    for values, expected in [
        (["b", "a", "b", None, ""], ["a", "b"]),
        ([30, 4, -1, 30], [4, 30]),
        ([True, False], ["False", "True"]),
        (pd.Series(["b", "a"], dtype="category").iloc[:1], ["b"]),
        (np.array([["b", "a"], ["", "b"]]), ["a", "b"]),
    ]:
        column = categorical_column_with_vocabulary_list("c").fit({"c": values})
        assert column.vocabulary_ == {value: i for i, value in enumerate(expected)}


def test_frequent_ones_are_learned():
    for options, expected in [
        ({"min_frequency": 2}, ["a", "b", "d"]),
        ({"max_categories": 2}, ["b", "d"]),
        ({"max_categories": 3, "min_frequency": 2}, ["a", "b", "d"]),
        ({"max_categories": 9}, ["a", "b", "c", "d"]),
    ]:
        column = categorical_column_with_vocabulary_list("c", **options)
        column.fit({"c": list("ddd" + "bbb" + "aa" + "c")})
        assert list(column.vocabulary_) == expected


@pytest.mark.parametrize(
    ("min_frequency", "expected"),
    [(0.3, ["b", "d"]), (0.31, []), (0.2, ["a", "b", "d"]), (0.1, list("abcd"))],
)
def test_share_of_all_rows(min_frequency, expected):
    column = categorical_column_with_vocabulary_list("c", min_frequency=min_frequency)
    X = {"c": [*"dddbbbaac", None]}
    if not expected:
        with pytest.raises(ValueError, match=r"\(min_frequency=0.31\)"):
            column.fit(X)
        return
    assert list(column.fit(X).vocabulary_) == expected


def test_a_cell_of_several_values_counts_once():
    for cells in [
        [["a", "b"], ["a"], [], None, ["c", "b", "b"]],
        np.array([["a", "b", ""], ["a", "", ""], [""] * 3, [""] * 3, list("cbb")]),
        ["a|b", "a", "", None, "c|b||b"],
    ]:
        delimiter = "|" if isinstance(cells[0], str) else None
        for min_frequency, expected in ((0.4, ["a", "b"]), (0.41, ["b"])):
            column = categorical_column_with_vocabulary_list(
                "c", min_frequency=min_frequency, delimiter=delimiter
            )
            assert list(column.fit({"c": cells}).vocabulary_) == expected


def test_the_weight_of_a_row_counts_for_each_of_its_values():
    column = categorical_column_with_vocabulary_list(
        "c", min_frequency=2, delimiter="|"
    )
    column.fit({"c": ["a|b|b", "c|a", "d"]}, sample_weight=[1, 1, 2])
    assert list(column.vocabulary_) == ["a", "b", "d"]


def test_cells_refused():
    for column, values, message in [
        (("c", ["a"]), [1], r"type 'string' \('a'\), .*'c'; got 1 of type 'int64'"),
        (("c", [1]), ["a"], r"type 'int64' \(1\), .*'c'; got 'a' of type 'string'"),
        (("c",), [None, ""], "'c' has no value that occurs often enough"),
    ]:
        with pytest.raises(ValueError, match=message):
            categorical_column_with_vocabulary_list(*column).fit({"c": values})


def test_type_of_cells_is_learned():
    column = categorical_column_with_vocabulary_list("c").fit({"c": ["a"]})
    with pytest.raises(ValueError, match="vocabulary of column 'c'; got 1 of type"):
        column.encode({"c": [1]})
    assert ids(column, pd.Series([np.nan])) == [[-1]]


def test_zeros_and_ones_become_booleans_again():
    flags = pd.Series([True, False])
    column = categorical_column_with_vocabulary_list("c").fit({"c": flags})
    assert ids(column, flags.astype(int)) == ids(column, flags) == [[1], [0]]
    assert ids(column, pd.Series([1, None])) == [[1], [-1]]
    with pytest.raises(ValueError, match=r"type 'string' \('False' and 'True'\), by"):
        column.encode({"c": [1, 2]})


def test_parameters_refused():
    for options, error, message in [
        ({"vocabulary_list": []}, ValueError, "non-empty list"),
        ({"vocabulary_list": "abc"}, TypeError, "a list of values, .* the str 'abc'"),
        ({"vocabulary_list": {"a"}}, TypeError, "a list .* whose order .* the set"),
        ({"vocabulary_list": [1.0]}, ValueError, "either of strings or of integers"),
        (
            {"vocabulary_list": np.array([1, -1])},
            ValueError,
            "'vocabulary_list' of .* 'c' must not hold -1, .* make strings of the",
        ),
        ({"dtype": "float32"}, ValueError, "'dtype' .* must be one of None, 'string'"),
        (
            {"vocabulary_list": ["a"], "default_value": 1},
            ValueError,
            "of 1 values, must be .* from -1 to 0; got 1",
        ),
        ({"min_frequency": 0}, ValueError, "'min_frequency' .* at least 1"),
        ({"min_frequency": 1.0}, ValueError, "'min_frequency' .* between 0 and 1"),
        ({"max_categories": 0}, ValueError, "'max_categories' .* at least 1"),
        (
            {"vocabulary_list": ["a"], "max_categories": 3},
            ValueError,
            "no meaning when 'vocabulary_list' is given",
        ),
    ]:
        with pytest.raises(error, match=message):
            categorical_column_with_vocabulary_list("c", **options)


def test_default_value_beyond_what_was_learned():
    column = categorical_column_with_vocabulary_list("c", default_value=3)
    with pytest.raises(ValueError, match="of 1 values, must be .* from -1 to 0; got 3"):
        column.fit({"c": ["a"]})


def test_rare_unknown_and_missing_values_have_ids():
    cells = np.array(["a", "a", "b", "c", None], dtype=object)
    settings = {"num_oov_buckets": 1, "min_frequency": 2, "missing_bucket": True}
    column = categorical_column_with_vocabulary_list("c", **settings).fit({"c": cells})
    new = {"c": np.append(cells, "new")}
    assert column.encode(new)["c_ids"].ravel().tolist() == [0, 0, 1, 1, 2, 1]
    assert column.inverse([0, 1, 2]).tolist() == ["a", None, None]
    assert column.get_feature_names_out().tolist() == ["c_a", "c_oov0", "c_missing"]
    assert column.transform(new).shape == (6, 3)


def test_values_hidden_in_training(rng):
    X = {"c": rng.integers(0, 20, 5000).astype(str).astype(object)}
    X["c"][:100] = None
    column = categorical_column_with_vocabulary_list(
        "c", num_oov_buckets=1, unknown_rate=0.1, missing_bucket=True
    )
    columns = FeatureColumns([embedding_column(column, 2), indicator_column(column)])
    beside = columns.fit(X).training_features(X, None, seed=0)
    plain, hidden = (columns.encode(own)["c_ids"] for own in (X, X | beside))
    assert (plain < 20).sum() == 4900
    assert (plain[:100] == hidden[:100]).all()  # what is missing stays so
    assert 400 < (hidden != plain).sum() < 600
    assert (hidden[hidden != plain] == 20).all()
    again = columns.training_features(X, None, seed=0)
    assert_array_equal(*(next(iter(own.values())) for own in (beside, again)))


def test_the_vectors_of_unknown_and_missing_are_trained(rng):
    X = {"c": rng.integers(0, 20, 300).astype(str).astype(object)}
    X["c"][:10] = None
    column = categorical_column_with_vocabulary_list(
        "c", num_oov_buckets=1, unknown_rate=0.05, missing_bucket=True
    )
    start = 3.0
    embedding = embedding_column(
        column, 2, initializer=lambda table, _: table.fill_(start)
    )
    model = DNNClassifier(feature_columns=[embedding], max_iter=2, random_state=0)
    model.fit(X, rng.integers(0, 2, 300))
    table = model.feature_columns_.active[0].weights_
    assert table.shape == (22, 2)
    assert (table != start).any(axis=1).all()


def test_wrong_settings_of_unknown_and_missing():
    for settings, message in [
        ({"unknown_rate": 1.0, "num_oov_buckets": 1}, "from 0 to less than 1; got 1.0"),
        ({"unknown_rate": 0.1}, "needs a bucket .* num_oov_buckets=1"),
        ({"missing_bucket": "yes"}, "'missing_bucket' .* one of"),
    ]:
        with pytest.raises(ValueError, match=message):
            categorical_column_with_vocabulary_list("c", **settings)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "vocabulary.txt"


def vocabulary_of(path, content, **options):
    path.write_bytes(content)
    column = categorical_column_with_vocabulary_file("c", path, **options)
    return list(column.fit({"c": [None]}).vocabulary_)


def test_lines(path):
    for content, expected in [
        (b"ant\nbee", ["ant", "bee"]),
        (b"ant\nbee\n", ["ant", "bee"]),
        (b"ant\r\nbee\r\n", ["ant", "bee"]),
        (b" ant \n\tbee", [" ant ", "\tbee"]),
        (b"\xef\xbb\xbfant\nbee", ["ant", "bee"]),
        ("Zürich\n東京\n🐝\n".encode(), ["Zürich", "東京", "🐝"]),
        ("a\u2028b\nc\x0bd\x85\ne\rf\n".encode(), ["a\u2028b", "c\x0bd\x85", "e\rf"]),
        (b"ant\n\nbee", ["ant", "", "bee"]),
        (b"a\0b\na\n", ["a\0b", "a"]),
    ]:
        assert vocabulary_of(path, content) == expected


def test_an_empty_line_takes_an_id_that_no_cell_has(path):
    path.write_text("ant\n\nbee\n")
    column = categorical_column_with_vocabulary_file("c", path)
    assert ids(column, ["bee", "", "ant"]) == [[2], [-1], [0]]
    assert column.num_buckets == 3


def test_the_first_lines(path):
    assert vocabulary_of(path, b"b\na\na\n", vocabulary_size=2) == ["b", "a"]


def test_integers(path):
    content = f"7\n-3\n{2**63 - 1}\n{-(2**63)}\n".encode()
    expected = [7, -3, 2**63 - 1, -(2**63)]
    assert vocabulary_of(path, content, dtype="int64") == expected
    column = categorical_column_with_vocabulary_file("c", path, dtype="int64")
    assert ids(column, [-3, 5, 7, -1]) == [[1], [-1], [0], [-1]]


def test_read_by_fit_and_never_again(path):
    path.write_text("ant\nbee\n")
    given = categorical_column_with_vocabulary_file("c", path)
    columns = FeatureColumns([embedding_column(given, "auto")]).fit({"c": ["ant"]})
    assert not hasattr(given, "vocabulary_")
    path.write_text("bee\n")
    for fitted in (columns, pickle.loads(pickle.dumps(columns))):
        assert fitted.encode({"c": ["bee"]})["c_ids"].tolist() == [[1]]
    path.unlink()
    assert columns.active[0].size == 7
    refitted = clone(columns)
    with pytest.raises(ValueError, match="cannot be read"):
        refitted.fit({"c": ["ant"]})


def test_sequences(path):
    path.write_text("lab\nward\n")
    column = sequence_categorical_column_with_vocabulary_file("c", path, delimiter=">")
    encoded = column.fit({"c": ["lab"]}).encode({"c": ["ward>lab", None, "home>>lab>"]})
    assert encoded["c_ids"].tolist() == [[1, 0, -1], [-1, -1, -1], [-1, -1, 0]]
    assert encoded["c_ids_length"].tolist() == [2, 0, 3]
    assert column.inverse([[1, -1]]).tolist() == [["ward", None]]


def test_files_refused(path):
    for content, options, message in [
        (b"", {}, "vocabulary.txt' of column 'c' has 0 lines, but at least 1"),
        (b"a\nb\n", {"vocabulary_size": 3}, "has 2 lines, but 3 are expected"),
        (b"a\nb\na\n", {}, "no duplicates; lines 1 and 3 hold 'a'"),
        (b"a\n\n\n", {}, "no duplicates; lines 2 and 3 hold ''"),
        (b"7\n07\n", {"dtype": "int64"}, "no duplicates; lines 1 and 2 hold 7"),
        (b"7\nx\n", {"dtype": "int64"}, "integers of 64 bits, .*; line 2 is 'x'"),
        (b"7\n-1\n", {"dtype": "int64"}, "column 'c' must not .* -1, which means miss"),
        ("\u0665".encode(), {"dtype": "int64"}, "line 1 is '\u0665'"),
        (b"9223372036854775808", {"dtype": "int64"}, "line 1 is '9223372036854775808'"),
        (b"a\nb\xff\n", {}, "is not in UTF-8; line 2 has the byte 0xff"),
        (
            b"a\nb\n",
            {"default_value": 2},
            "of 2 values, must be .* from -1 to 1; got 2",
        ),
    ]:
        with pytest.raises(ValueError, match=message):
            vocabulary_of(path, content, **options)


def test_missing_file(path):
    column = categorical_column_with_vocabulary_file("c", path)
    with pytest.raises(
        ValueError, match=r"vocabulary.txt' of column 'c' cannot be read \(No such file"
    ):
        column.fit({"c": ["ant"]})


def test_parameters_of_a_file_refused():
    for options, error, message in [
        ({"vocabulary_file": None}, TypeError, "the path of a file; got None"),
        ({"vocabulary_size": 0}, ValueError, "'vocabulary_size' .* at least 1; got 0"),
        ({"dtype": None}, ValueError, "'dtype' .* one of 'string', 'int64'; got None"),
        ({"default_value": -2}, ValueError, "'default_value' .* at least -1"),
        (
            {"default_value": 3, "vocabulary_size": 3},
            ValueError,
            "of 3 values, must be .* from -1 to 2; got 3",
        ),
        ({"default_value": 0, "num_oov_buckets": 1}, ValueError, "use one of them"),
    ]:
        options = {"vocabulary_file": "v.txt", **options}
        with pytest.raises(error, match=message):
            categorical_column_with_vocabulary_file("c", **options)


@pytest.mark.parametrize("form", [str.lower, str.upper, lambda text: text[0]])
def test_booleans_in_another_spelling_are_refused(form):
    known = np.array([True, False, True])
    column = categorical_column_with_vocabulary_list("b").fit({"b": known})
    ids = column.encode({"b": known.astype(str).astype(object)})["b_ids"]
    assert_array_equal(ids, column.encode({"b": known})["b_ids"])
    other = np.array([form(str(b).lower()) for b in known], object)
    for cells in (other, np.array([*other, *"0123456789"], object)):
        with pytest.raises(
            ValueError, match="'b' holds .*, where fit has seen True and"
        ):
            column.encode({"b": cells})
