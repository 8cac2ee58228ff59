# SPDX-License-Identifier: Apache-2.0
import pickle

import pytest
from sklearn.base import clone

from skest.feature_columns import (
    FeatureColumns,
    categorical_column_with_vocabulary_file,
    embedding_column,
    sequence_categorical_column_with_vocabulary_file,
)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "vocabulary.txt"


def ids(column, values):
    return column.encode({"c": values})["c_ids"].tolist()


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
        (b"a\nb\n", {"default_value": 2}, "the size of the vocabulary, 2; got 2"),
    ]:
        with pytest.raises(ValueError, match=message):
            vocabulary_of(path, content, **options)


def test_missing_file(path):
    column = categorical_column_with_vocabulary_file("c", path)
    with pytest.raises(
        ValueError, match=r"vocabulary.txt' of column 'c' cannot be read \(No such file"
    ):
        column.fit({"c": ["ant"]})


def test_parameters_refused():
    for options, error, message in [
        ({"vocabulary_file": None}, TypeError, "the path of a file; got None"),
        ({"vocabulary_size": 0}, ValueError, "'vocabulary_size' .* at least 1; got 0"),
        ({"dtype": None}, ValueError, "'dtype' .* one of 'string', 'int64'; got None"),
        ({"default_value": -2}, ValueError, "'default_value' .* at least -1"),
        (
            {"default_value": 3, "vocabulary_size": 3},
            ValueError,
            "less than the size of the vocabulary, 3; got 3",
        ),
        ({"default_value": 0, "num_oov_buckets": 1}, ValueError, "use one of them"),
    ]:
        options = {"vocabulary_file": "v.txt", **options}
        with pytest.raises(error, match=message):
            categorical_column_with_vocabulary_file("c", **options)
