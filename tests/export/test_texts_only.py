# SPDX-License-Identifier: Apache-2.0
"""Integers where texts are expected: exported models refuse what fitted ones refuse."""

import json

import pandas as pd
import pytest

from skest import LinearClassifier, export
from skest import feature_columns as fc

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

TABLE = pd.DataFrame({"word": ["1", "two", "2", "two"] * 9, "code": [1, 2, 2, 1] * 9})
Y = [0, 1, 1, 0] * 9

STRICT = {
    "vocabulary": fc.categorical_column_with_vocabulary_list("word", ["1", "two"]),
    "learned": fc.categorical_column_with_vocabulary_list("word"),
    "delimiter": fc.categorical_column_with_hash_bucket("word", 50, delimiter="|"),
    "typed": fc.categorical_column_with_hash_bucket("word", 50, dtype="string"),
}


def loaded(column, directory, **options):
    """Return a fitted model, and what `export.load` makes of it."""
    model = LinearClassifier(feature_columns=[column], max_iter=2, random_state=0).fit(
        TABLE, Y
    )
    return model, export.load(model.export(directory, **options))


@pytest.mark.parametrize("name", STRICT)
def test_integers_are_refused_where_the_model_refuses_them(name, tmp_path):
    model, served = loaded(STRICT[name], tmp_path)
    table = {"word": [1], "code": [1]}
    with pytest.raises(ValueError, match="word"):
        model.predict_proba(pd.DataFrame(table))
    with pytest.raises(TypeError, match="'word' takes texts; got 1 of type int"):
        served.predict_proba(table)
    with pytest.raises(TypeError, match="'word' takes texts; got 1 of type int"):
        served.predict_proba(pd.DataFrame(table))
    served.predict_proba({"word": [True, None, "1"], "code": [1, 1, 1]})


def test_buckets_of_both_take_integers_as_the_model_does(tmp_path):
    column = fc.categorical_column_with_hash_bucket("word", 50)
    model, served = loaded(column, tmp_path)
    table = pd.DataFrame({"word": [1, 2, 77], "code": 1})
    assert served.predict_proba(table) == pytest.approx(model.predict_proba(table))


def test_integer_vocabularies_take_integers(tmp_path):
    column = fc.categorical_column_with_vocabulary_list("code", [1, 2])
    model, served = loaded(column, tmp_path)
    table = pd.DataFrame({"word": "two", "code": [1, 2, 77]})
    assert served.predict_proba(table) == pytest.approx(model.predict_proba(table))


def test_crosses_of_texts_refuse_integers_which_have_other_keys(tmp_path):
    _, served = loaded(fc.crossed_column(["word", "code"], 100), tmp_path)
    with pytest.raises(TypeError, match="'word' takes texts; got 2"):
        served.predict_proba({"word": [2], "code": [1]})


def test_exports_of_before_take_them_still(tmp_path):
    _, served = loaded(STRICT["vocabulary"], tmp_path)
    path = served.path / "manifest.json"
    manifest = json.loads(path.read_text())
    assert manifest["features"]["word"].pop("texts_only") is True
    path.write_text(json.dumps(manifest))
    old = export.load(tmp_path, verify=False)
    assert (
        old.predict_proba({"word": [1]}) == served.predict_proba({"word": ["1"]})
    ).all()
