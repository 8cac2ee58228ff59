# SPDX-License-Identifier: Apache-2.0
"""Requests take about as much memory as their numbers say."""

import json
import subprocess
import sys

import numpy as np
import pytest

pytest.importorskip("onnxruntime")
import skest
from skest import feature_columns as fc

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="sizes are those of Linux"),
]

ASKS = r"""
import json, pathlib, re, sys
from skest import export
from skest.export.serving.errors import RequestError
from skest.export.serving.limits import Limits
from skest.export.serving.request_sizes import check_sizes

def peak():
    status = pathlib.Path("/proc/self/status").read_text()
    return int(re.search(r"VmHWM:\s*(\d+)", status)[1]) * 1024

model = export.load(sys.argv[1])
cells, n_rows = json.loads(sys.argv[2]), int(sys.argv[3])
rows = {name: [cell] * n_rows for name, cell in cells.items()}
model.run({name: column[:1] for name, column in rows.items()})
before = peak()
model.run(rows)
try:
    check_sizes(rows, model.features, model.widths, Limits(max_numbers=1))
except RequestError as error:
    print(str(error).split()[4], peak() - before)
"""


def numbers(n_columns, size=1):
    cell = [0.5] * size if size > 1 else 0.5
    return {f"n{i}": cell for i in range(n_columns)}


def buckets(n_boundaries, n_columns, size=1):
    boundaries = np.linspace(-1, 1, n_boundaries).tolist()
    numeric = (fc.numeric_column(name, size) for name in numbers(n_columns))
    return [fc.bucketized_column(column, boundaries) for column in numeric]


def lists(n_columns, length):
    return {f"l{i}": ["a"] * length for i in range(n_columns)}


def embedded(names):
    words = fc.categorical_column_with_vocabulary_list
    return [fc.embedding_column(words(name, ["a", "b"]), 32) for name in names]


def deep(columns):
    return skest.DNNRegressor((4,), feature_columns=columns, max_iter=1)


def wide(columns):
    return skest.LinearRegressor(feature_columns=columns, max_iter=1)


CASES = {
    "one-hot buckets": (deep(buckets(50, 40)), numbers(40), 8000),
    "buckets of many columns": (wide(buckets(50, 40)), numbers(40), 8000),
    "many boundaries": (wide(buckets(900, 1, 100)), numbers(1, 100), 4000),
    "lists, embedded": (deep(embedded(lists(20, 9))), lists(20, 9), 2000),
}


@pytest.mark.parametrize(("model", "cells", "n_rows"), CASES.values(), ids=CASES)
def test_bytes_of_a_number(tmp_path, model, cells, n_rows):
    """A limit on numbers is one on memory, and refuses nothing that takes little."""
    rows = {name: [cell] * 8 for name, cell in cells.items()}
    version = model.fit(rows, np.arange(8.0)).export(tmp_path)
    arguments = [str(version), json.dumps(cells), str(n_rows)]
    command = [sys.executable, "-c", ASKS, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    counted, taken = map(int, done.stdout.split())
    raw = 16 * n_rows * sum(np.size(cell) for cell in cells.values())
    assert taken <= 24 * counted + raw + 2**24
    assert counted <= taken / 2 + 2**22
