# SPDX-License-Identifier: Apache-2.0
"""The examples run on real tables and reach their figures."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from sklearn.metrics import roc_auc_score

from skest import DNNLinearCombinedClassifier

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
DATA = EXAMPLES.parents[1] / "shared" / "data"
CENSUS, BIKES = DATA / "adult", DATA / "bike_sharing"

pytestmark = pytest.mark.slow


def run_census_wide_deep(*arguments):
    """Run the example; return its output and the scores of its last table."""
    completed = subprocess.run(
        [sys.executable, EXAMPLES / "census_wide_deep.py", *arguments],
        check=True,
        capture_output=True,
        text=True,
        timeout=600,
        env={**os.environ, "PYTHONPATH": str(EXAMPLES.parent)},
    )
    lines = completed.stdout.splitlines()
    header = next(i for i, line in enumerate(lines) if line.split()[:1] == ["accuracy"])
    rows = [line.rsplit(maxsplit=4) for line in lines[header + 1 : header + 4]]
    return completed.stdout, {
        name: [float(v) for v in values] for name, *values in rows
    }


@pytest.mark.skipif(not CENSUS.is_dir(), reason=f"the Census table is not at {CENSUS}")
def test_census():
    output, scores = run_census_wide_deep("--data", str(CENSUS), "--offline")
    assert "Census income" in output
    accuracy, auc, log_loss, _ = scores["DNNLinearCombinedClassifier"]
    assert accuracy >= 0.850
    assert auc >= 0.905
    assert log_loss < scores["LogisticRegression, one-hot"][2]


@pytest.mark.skipif(not CENSUS.is_dir(), reason=f"the Census table is not at {CENSUS}")
def test_census_with_default_parameters(monkeypatch):
    monkeypatch.syspath_prepend(EXAMPLES)
    from mixed_tables import load_census

    table = load_census(CENSUS, offline=True)
    model = DNNLinearCombinedClassifier(random_state=0).fit(
        table.X_train, table.y_train
    )
    probability = model.predict_proba(table.X_test)[:, 1]
    assert model.score(table.X_test, table.y_test) >= 0.850
    assert roc_auc_score(table.y_test, probability) >= 0.905


def test_survey_without_a_download(tmp_path):
    output, scores = run_census_wide_deep("--survey")
    assert "Fair 1978" in output
    accuracy, auc, *_ = scores["DNNLinearCombinedClassifier"]
    assert accuracy > 0.70
    assert auc > 0.72


@pytest.mark.skipif(not BIKES.is_dir(), reason=f"the bike table is not at {BIKES}")
def test_bike_counts():
    completed = subprocess.run(
        [sys.executable, EXAMPLES / "bike_counts.py", "--data", str(BIKES)],
        check=True,
        capture_output=True,
        text=True,
        timeout=600,
    )
    rows = [line.rsplit(maxsplit=2) for line in completed.stdout.splitlines()[2:]]
    deviance = {name.split("(")[0]: float(value) for name, value, _ in rows}
    assert deviance["DNNRegressor"] <= 10
    assert deviance["PoissonRegressor, one-hot"] > 30


def test_sequences():
    completed = subprocess.run(
        [sys.executable, EXAMPLES / "sequences.py", "--rows", "4000"],
        check=True,
        capture_output=True,
        text=True,
        timeout=600,
        env={**os.environ, "PYTHONPATH": str(EXAMPLES.parent)},
    )
    rows = [line.rsplit(maxsplit=4) for line in completed.stdout.splitlines()[2:]]
    auc = {name: float(values[1]) for name, *values in rows}
    assert auc["RNNClassifier"] > auc["DNNClassifier, bag"] + 0.03
    assert auc["RNNClassifier"] > auc["LogisticRegression, bag"] + 0.05
