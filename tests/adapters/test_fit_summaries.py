# SPDX-License-Identifier: Apache-2.0

import numpy as np
import pandas as pd
import pytest

from skest import DNNClassifier, MultiHeadEstimator, RunConfig
from tests.hooks._events import event_files, scalars

RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 3)).astype(np.float32)
Y = (X[:, 0] > 0).astype(int)


def runs(directory):
    return sorted(directory.glob("fit-*"))


def model(directory, **settings):
    config = RunConfig(model_dir=directory, save_summary_steps=2)
    settings = {"max_iter": 4, "batch_size": 20, "random_state": 0} | settings
    return DNNClassifier((4,), config=config, **settings)


def test_a_fit_shows_its_epochs_and_what_it_ends_with(tmp_path):
    fitted = model(tmp_path, early_stopping=True).fit(X, Y)
    (run,) = runs(tmp_path)
    found = scalars(run)
    losses, scores = fitted.loss_curve_, fitted.validation_scores_
    assert list(found["epoch/loss"].values()) == pytest.approx(losses)
    assert list(found["epoch/validation_score"].values()) == pytest.approx(scores)
    assert found["final/loss"] == {12: pytest.approx(fitted.loss_)}
    best = fitted.best_validation_score_
    assert found["final/validation_score"] == {12: pytest.approx(best)}
    assert list(found["loss"]) == [1, 3, 5, 7, 9, 11, 12]


def test_losses_of_several_targets(tmp_path):
    y = pd.DataFrame({"side": Y, "amount": X[:, 1]})
    config = RunConfig(model_dir=tmp_path, save_summary_steps=1)
    MultiHeadEstimator((4,), max_iter=1, random_state=0, config=config).fit(X, y)
    (run,) = runs(tmp_path)
    assert {"loss", "loss/side", "loss/amount"} <= set(scalars(run))


def test_nothing_is_written_unless_asked_for(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for config in (None, RunConfig(), RunConfig(save_summary_steps=None)):
        DNNClassifier((4,), max_iter=2, config=config).fit(X, Y).evaluate(X, Y)
        assert not list(tmp_path.iterdir())
    config = RunConfig(model_dir=tmp_path, save_summary_steps=None)
    DNNClassifier((4,), max_iter=2, random_state=0, config=config).fit(X, Y)
    (run,) = runs(tmp_path)
    assert not event_files(run)
