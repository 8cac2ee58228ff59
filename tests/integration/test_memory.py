# SPDX-License-Identifier: Apache-2.0
"""A table of millions of rows costs its own memory, and nothing is made dense."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PEAK = Path("/proc/self/clear_refs")

SCRIPT = """
import ctypes, gc, sys
from pathlib import Path
import numpy as np, pandas as pd, torch
from skest import feature_columns as fc
from skest import DNNClassifier, LinearClassifier

def status(field):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(float(x.split()[1]) for x in lines if x.startswith(field)) / 1024

torch.set_num_threads(1)
rng = np.random.default_rng(0)
X = pd.DataFrame({"user": rng.integers(0, 10**9, 20_000).astype(str)})
y = rng.integers(0, 2, len(X))

def make(n_buckets):
    user = fc.categorical_column_with_hash_bucket("user", n_buckets)
    options = dict(optimizer="sgd", max_iter=2, early_stopping=False, random_state=0)
    if sys.argv[1] == "linear":
        columns = [user, fc.crossed_column(["user", "user_2"], n_buckets)]
        return LinearClassifier(feature_columns=columns, **options)
    columns = [fc.embedding_column(user, 8)]
    return DNNClassifier((16,), feature_columns=columns, **options)

X["user_2"] = X["user"]
make(100).fit(X, y).predict(X[:10])  # whatever libraries need once
gc.collect()
ctypes.CDLL("libc.so.6").malloc_trim(0)
PEAK = Path("/proc/self/clear_refs")
before = status("VmRSS")
PEAK.write_text("5")
model = make(int(sys.argv[2])).fit(X, y)
print(status("VmHWM") - before)
before = status("VmRSS")
PEAK.write_text("5")
model.predict(X)
print(status("VmHWM") - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(not PEAK.exists(), reason="the peak is read from Linux's /proc")
@pytest.mark.parametrize(
    ("kind", "n_rows", "width"), [("dnn", 4_000_000, 8), ("linear", 10_000_000, 2)]
)
def test_the_tables_are_all(kind, n_rows, width):
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, kind, str(n_rows)],
        check=True,
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=280,
    )
    fit, predict = map(float, done.stdout.split())
    tables = n_rows * width * 4 / 2**20
    # One copy is trained, the other is the checkpoint that the estimator keeps.
    assert fit < 2.1 * tables + 60
    assert predict < 1.1 * tables + 60
