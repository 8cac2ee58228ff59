# SPDX-License-Identifier: Apache-2.0
"""The examples run on real tables and reach their figures."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
DATA = EXAMPLES.parents[1] / "shared" / "data"
CENSUS, BIKES, YEAST = (DATA / n for n in ("adult", "bike_sharing", "yeast"))

# `run` has a limit of its own, which leaves room on a busy machine.
pytestmark = pytest.mark.timeout(660)


def run(example, *arguments):
    """Run an example and return its output."""
    return subprocess.run(
        [sys.executable, EXAMPLES / example, *arguments],
        check=True,
        capture_output=True,
        text=True,
        timeout=600,
        env={**os.environ, "PYTHONPATH": str(EXAMPLES.parent)},
    ).stdout


def scores_of(lines, n_columns):
    """Return the numbers of a table by the name of the row."""
    rows = [line.rsplit(maxsplit=n_columns) for line in lines]
    return {name: [float(v) for v in values] for name, *values in rows}


def run_census_wide_deep(*arguments):
    """Run the example; return its output and the scores of its last table."""
    output = run("census_wide_deep.py", *arguments)
    lines = output.splitlines()
    header = next(i for i, line in enumerate(lines) if line.split()[:1] == ["accuracy"])
    return output, scores_of(lines[header + 1 : header + 6], 4)


@pytest.mark.slow
@pytest.mark.skipif(not CENSUS.is_dir(), reason=f"the Census table is not at {CENSUS}")
def test_census():
    few = ("--search-rows", "2000")
    output, scores = run_census_wide_deep("--data", str(CENSUS), "--offline", *few)
    assert "Census income" in output
    accuracy, auc, *_ = scores["DNNLinearCombinedClassifier()"]
    assert accuracy >= 0.870
    assert auc >= 0.925
    accuracy, auc, log_loss, _ = scores["the same, columns by hand"]
    assert accuracy >= 0.850
    assert auc >= 0.905
    assert log_loss < scores["LogisticRegression, one-hot"][2]


@pytest.mark.nightly
def test_survey_without_a_download():
    quick = ("--search-rows", "300", "--jobs", "1", "--epochs", "8")
    output, scores = run_census_wide_deep("--survey", *quick)
    assert "Fair 1978" in output
    accuracy, auc, *_ = scores["the same, columns by hand"]
    assert accuracy > 0.70
    assert auc > 0.72


@pytest.mark.nightly
@pytest.mark.skipif(not CENSUS.is_dir(), reason=f"the Census table is not at {CENSUS}")
def test_entity_embeddings():
    arguments = ("--data", str(CENSUS), "--offline", "--rows", "40000")
    output = run("entity_embeddings.py", *arguments)
    few, many = (
        scores_of(part.splitlines()[2:], 4) for part in output.strip().split("\n\n")
    )
    few, many = (
        {name.removeprefix("boosting, "): auc for name, (_, auc, *_) in part.items()}
        for part in (few, many)
    )
    others = ("ordinal codes", "one-hot", "means of the target")
    for name in others:  # with few levels, codes are as good
        assert abs(few["learned vectors"] - few[name]) < 0.005
    assert few["learned vectors"] > 0.92
    assert many["learned vectors"] > max(many[name] for name in others) + 0.05


@pytest.mark.nightly
@pytest.mark.skipif(not BIKES.is_dir(), reason=f"the bike table is not at {BIKES}")
def test_bike_counts():
    lines = run("bike_counts.py", "--data", str(BIKES)).splitlines()
    scores = scores_of(lines[2:], 2)
    deviance = {name.split("(")[0]: values[0] for name, values in scores.items()}
    assert deviance["DNNRegressor"] <= 10
    assert deviance["PoissonRegressor, one-hot"] > 30


@pytest.mark.nightly
@pytest.mark.skipif(not BIKES.is_dir(), reason=f"the bike table is not at {BIKES}")
def test_bike_tasks():
    lines = run("bike_tasks.py", "--data", str(BIKES)).splitlines()
    scores = scores_of(lines[3:], 5)
    casual, registered, log_loss, auc, _ = scores["MultiHeadEstimator, three heads"]
    for name in ("separate HistGradientBoosting…", "separate linear models, one-hot"):
        separate = scores[name]
        assert casual < separate[0]
        assert registered < separate[1]
        assert log_loss < separate[2]
        assert auc > separate[3]


@pytest.mark.nightly
@pytest.mark.skipif(not YEAST.is_dir(), reason=f"the yeast table is not at {YEAST}")
def test_yeast_labels():
    lines = run("yeast_labels.py", "--data", str(YEAST)).splitlines()
    scores = scores_of(lines[2:], 4)
    wrong, f1, ranking, _ = scores["DNNClassifier, searched"]
    separate = scores["LogisticRegression for each label"]
    assert wrong < separate[0]
    assert f1 > separate[1]
    assert ranking > separate[2]


@pytest.mark.slow
def test_sequences():
    lines = run("sequences.py", "--rows", "4000").splitlines()
    auc = {name: values[1] for name, values in scores_of(lines[2:], 4).items()}
    assert auc["RNNClassifier"] > auc["DNNClassifier, bag"] + 0.03
    assert auc["RNNClassifier"] > auc["LogisticRegression, bag"] + 0.05
