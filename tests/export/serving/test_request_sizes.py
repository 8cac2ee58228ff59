# SPDX-License-Identifier: Apache-2.0
"""What a request would take is known before it takes it."""

import numpy as np
import pytest

pytest.importorskip("onnxruntime")
from skest.export.serving.errors import RequestError
from skest.export.serving.limits import Limits
from skest.export.serving.request_sizes import answer_numbers, check_sizes

ONE = {"dtype": "string", "shape": [None, 1], "missing": ""}
LIST = {"dtype": "string", "shape": [None, None], "missing": ""}
VECTORS = {"dtype": "float32", "shape": [None, None, 5], "missing": "nan"}
FIXED = {"dtype": "float32", "shape": [None, 2, 3], "missing": "nan"}
FEATURES = {"one": ONE, "a": LIST, "b": LIST, "v": VECTORS, "f": FIXED}
COLUMNS = {
    "one": ["x"] * 4,
    "a": [["x"] * 3, [], ["x"], None],
    "b": [["y"] * 2, ["y"], [], ["y", "y"]],
    "v": [[[0.0] * 5] * 2, [], [], []],
    "f": [[[0.0] * 3] * 2] * 4,
}
PADDED = 4 * (4 * 3 + 4 * 2) + 4 * 2 * 5  # a string counts as four numbers
CASES = {
    "nothing known": ([], 0),
    "row": ([{"of": ["one"], "row": 7}], 4 * 7),
    "row of a list": ([{"of": ["a"], "row": 7}], 4 * 7),
    # A cell that is no list counts as one value.
    "value": ([{"of": ["a"], "value": 7}], (3 + 0 + 1 + 1) * 7),
    "value of one": ([{"of": ["one"], "value": 7}], 4 * 7),
    "value of a matrix": ([{"of": ["f"], "value": 7}], 4 * 6 * 7),
    "cross with a matrix": ([{"of": ["a", "f"], "value": 7}], 5 * 6 * 7),
    "place": ([{"of": ["a"], "place": 7}], 4 * 3 * 7),
    "all": ([{"of": ["b"], "row": 1, "value": 2, "place": 3}], 4 + 5 * 2 + 8 * 3),
    "cross": ([{"of": ["a", "b"], "value": 7}], (3 * 2 + 0 + 0 + 2) * 7),
    "cross with one": ([{"of": ["a", "one"], "value": 7}], 5 * 7),
    "places of two": ([{"of": ["a", "b"], "place": 7}], 4 * 3 * 2 * 7),
    "several": ([{"of": ["a"], "row": 7}, {"of": ["b"], "row": 5}], 4 * 12),
    "transient": ([{"of": ["a"], "row": 1, "value": 7, "transient": True}], 4 + 5 * 7),
    "the most of transient ones": (
        [
            {"of": ["b"], "row": 1},
            {"of": ["a"], "value": 7, "transient": True},
            {"of": ["b"], "value": 9, "transient": True},
            {"of": ["one"], "row": 8, "transient": True},
        ],
        4 + 5 * 9,
    ),
    "not in the request": ([{"of": ["c"], "row": 7, "value": 2}], 4 * 9),
}


@pytest.mark.parametrize(("widths", "expected"), CASES.values(), ids=list(CASES))
@pytest.mark.parametrize("kind", ["lists", "arrays"])
def test_numbers_of_a_request(widths, expected, kind):
    columns = COLUMNS
    if kind == "arrays":
        columns = {name: objects(cells) for name, cells in COLUMNS.items()}
    enough = PADDED + expected
    check_sizes(columns, FEATURES, widths, Limits(max_numbers=enough))
    with pytest.raises(RequestError, match=f"make {enough} numbers of the 4 rows") as e:
        check_sizes(columns, FEATURES, widths, Limits(max_numbers=enough - 1))
    assert e.value.status == 413


def test_the_largest_part_is_named():
    widths = [
        {"of": ["a"], "row": 1000},
        {"of": ["b"], "row": 300},
        {"of": ["b"], "value": 500, "transient": True},
    ]
    limits = Limits(max_numbers=4000)
    with pytest.raises(RequestError, match=r"part of \['a'\]; at most 4000"):
        check_sizes(COLUMNS, FEATURES, widths, limits)
    widths[-1]["value"] = 600
    with pytest.raises(RequestError, match=r"part of \['b'\]; at most 4000"):
        check_sizes(COLUMNS, FEATURES, widths, limits)


def objects(cells):
    array = np.empty(len(cells), object)
    array[:] = cells
    return array


def test_what_the_model_refuses_is_left_to_it():
    widths = [{"of": ["a", "b"], "value": 7, "row": 1}]
    widths.append({"of": ["a"], "value": 7})
    for columns in ({"a": "text", "b": [["y"]]}, {"a": [["x"]], "b": [["y"]] * 2}, {}):
        check_sizes(columns, FEATURES, widths, Limits())


@pytest.mark.parametrize(
    ("limits", "features", "message"),
    [
        ({"max_rows": 3}, {}, "'one' has 4 rows; at most 3 are taken"),
        ({"max_cells": 11}, {}, "'a' has 4 rows of up to 3 values; at most 11"),
        ({"max_cells": 39}, {}, "'v' has 4 rows of up to 2 vectors of 5 values"),
        (
            {"max_cells": 40},
            {"a": {**LIST, "crossed": [["a", "b", "v"]]}},
            "'v'] are crossed, each value of a row with each, and would give 48",
        ),
        (
            {"max_cells": 71},
            {"f": {**FIXED, "crossed": [["f", "a"]]}},
            "'a'] are crossed, each value of a row with each, and would give 72",
        ),
    ],
)
def test_other_limits(limits, features, message):
    with pytest.raises(RequestError, match=message.replace("]", r"\]")):
        check_sizes(COLUMNS, {**FEATURES, **features}, [], Limits(**limits))


SCORES = {"tensor": "p", "dtype": "float32", "shape": [None, 100_000]}
NAMES = {"tensor": "c", "dtype": "string", "shape": [None, 100_000]}
SIGNATURES = {
    "classify": {"outputs": {"scores": SCORES, "classes": NAMES}},
    "predict": {"outputs": {"probabilities": SCORES}},
}


def test_numbers_of_an_answer():
    made = 100_000 * (1 + 4)  # whatever is asked for; a string counts as four
    assert answer_numbers(SIGNATURES, "predict") == made + 16 * 100_000
    assert answer_numbers(SIGNATURES, "classify") == made + 16 * 200_000
    anything = {"tensor": "x", "dtype": "float32", "shape": [None, None, 3]}
    assert answer_numbers({"a": {"outputs": {"x": anything}}}, "a") == 17 * 3


def test_large_answers_to_small_requests():
    answer = answer_numbers(SIGNATURES, "classify")
    widths = [{"of": ["one"], "row": 7}]
    limits = Limits(max_numbers=PADDED + 4 * (7 + answer))
    check_sizes(COLUMNS, FEATURES, widths, limits, answer)
    with pytest.raises(RequestError, match="part in the answer; at most .* fewer rows"):
        check_sizes(COLUMNS, FEATURES, widths, limits, answer + 1)
