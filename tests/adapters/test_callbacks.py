# SPDX-License-Identifier: Apache-2.0

import pytest
from sklearn.base import clone
from sklearn.callback import ProgressBar, ScoringMonitor
from sklearn.datasets import load_diabetes, load_iris
from sklearn.metrics import get_scorer
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from skest import (
    DNNClassifier,
    DNNRegressor,
    LinearRegressor,
    LinearSDCA,
    MultiHeadEstimator,
)
from tests._models import At, raising
from tests.adapters._nets import IRIS, assert_same_variables
from tests.adapters.conftest import make


class Recorder:
    """A callback that notes what it is told, and can stop or fail."""

    def __init__(self, stop_at=None, fail_at=None):
        self.stop_at = stop_at
        self.fail_at = fail_at
        self.calls = []
        self.contexts = []

    def setup(self, estimator, context):
        self.calls.append("setup")
        self.contexts.append(context)

    def teardown(self, estimator, context):
        self.calls.append("teardown")

    def on_fit_task_begin(self, estimator, context):
        self.calls.append(f"begin {context.task_name}")

    def on_fit_task_end(self, estimator, context):
        self.calls.append(f"end {context.task_name}")
        n_epochs = self.calls.count("end epoch")
        if n_epochs == self.fail_at:
            raise OSError("the disk is full")
        return n_epochs == self.stop_at


class Snapshots(Recorder):
    """Keeps the estimators that it is given."""

    def __init__(self):
        super().__init__()
        self.begun, self.ended = [], []

    def on_fit_task_begin(self, estimator, context, *, fitted_estimator):
        if context.task_name == "epoch":
            self.begun.append(fitted_estimator)

    def on_fit_task_end(self, estimator, context, *, fitted_estimator):
        if context.task_name == "epoch":
            self.ended.append(fitted_estimator)


def epochs_of(monitor, score):
    """Return the scores of epochs that a monitor has logged."""
    log = monitor.get_logs().data
    return [row[score] for row in log if row["task_name"] == "epoch"]


@pytest.mark.parametrize(
    "estimator",
    [
        DNNClassifier((4,), max_iter=3),
        LinearRegressor(max_iter=3, optimizer=LinearSDCA()),
        MultiHeadEstimator((4,), max_iter=3),
    ],
    ids=lambda e: type(e).__name__,
)
def test_a_fit_is_a_task_with_an_epoch_after_the_other(estimator):
    recorder = Recorder()
    X, y = IRIS
    y = {"species": y, "size": X[:, 0]} if "Multi" in type(estimator).__name__ else y
    estimator.set_params(early_stopping=False)  # which may find fewer epochs
    estimator.set_callbacks(recorder).fit(X, y)
    epochs = 3 * ["begin epoch", "end epoch"]
    assert recorder.calls == ["setup", "begin fit", *epochs, "end fit", "teardown"]
    assert recorder.contexts[0].max_subtasks == 3
    assert not any(
        "callback" in name for name in vars(estimator) if name[:5] != "_skl_"
    )


def test_a_callback_can_stop():
    recorder = Recorder(stop_at=7)
    model = make(DNNClassifier, max_iter=50).set_callbacks(recorder).fit(*IRIS)
    assert model.n_iter_ == len(model.loss_curve_) == 7
    assert recorder.calls[-2:] == ["end fit", "teardown"]


@pytest.mark.parametrize(
    "model, data, score",
    [
        (DNNClassifier((8,), max_iter=6, batch_size=32), load_iris, "neg_log_loss"),
        (DNNRegressor((8,), max_iter=6, batch_size=64), load_diabetes, "r2"),
    ],
)
def test_a_monitor_sees_the_weights_of_every_epoch(model, data, score):
    X, y = data(return_X_y=True)
    monitor = ScoringMonitor(scoring=score)
    model.set_params(early_stopping=True, random_state=0).set_callbacks(monitor)
    model.fit(X, y, X_val=X, y_val=y)
    assert epochs_of(monitor, score) == pytest.approx(model.validation_scores_)
    found = monitor.get_logs().data[0][score]
    assert found == pytest.approx(get_scorer(score)(model, X, y))


def test_an_estimator_of_an_epoch_is_as_if_fit_had_ended_there():
    snapshots = Snapshots()
    model = make(DNNClassifier, max_iter=3).set_callbacks(snapshots)
    model.fit(*IRIS)
    for n_epochs, fitted in enumerate(snapshots.ended, start=1):
        alone = clone(model).set_callbacks().set_params(max_iter=n_epochs).fit(*IRIS)
        assert_same_variables(fitted, alone)
        assert fitted.loss_curve_ == alone.loss_curve_
        assert (fitted.n_iter_, fitted.n_steps_) == (alone.n_iter_, alone.n_steps_)
        assert (fitted.predict(IRIS[0]) == alone.predict(IRIS[0])).all()
    assert snapshots.begun[0].n_steps_ == 0
    for before, after in zip(snapshots.ended, snapshots.begun[1:], strict=False):
        assert_same_variables(before, after)


@pytest.mark.parametrize(
    "hooks, recorder",
    [
        ([At(1, raising(OSError("the disk is full")))], Recorder()),
        ((), Recorder(fail_at=2)),
    ],
)
def test_a_failing_fit_tears_down_and_leaves_the_earlier_fit(hooks, recorder):
    model = make(DNNClassifier, max_iter=4).fit(*IRIS)
    before, state = model.predict_proba(IRIS[0]), set(vars(model))
    model.set_params(hooks=hooks).set_callbacks(recorder)
    with pytest.raises(OSError, match="the disk is full"):
        model.fit(*IRIS)
    assert recorder.calls[-1] == "teardown"
    assert recorder.calls.count("setup") == recorder.calls.count("teardown") == 1
    assert set(vars(model)) == {*state, "_skl_callbacks"}
    assert (model.predict_proba(IRIS[0]) == before).all()


def test_partial_fit_is_a_fit_of_one_epoch():
    # As that of StandardScaler, which sets callbacks up and tears them down, too.
    recorder, monitor = Recorder(), ScoringMonitor(scoring="accuracy")
    model = DNNClassifier((8,), random_state=0).set_callbacks(recorder, monitor)
    for n_epochs in (1, 2):
        model.partial_fit(*IRIS)
        assert model.n_iter_ == n_epochs
        assert epochs_of(monitor, "accuracy") == [model.score(*IRIS)]
    epoch = ["begin fit", "begin epoch", "end epoch", "end fit"]
    assert recorder.calls == 2 * ["setup", *epoch, "teardown"]


@pytest.mark.parametrize("n_jobs", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_progress_bars(capsys, n_jobs):
    pytest.importorskip("rich")
    make(DNNClassifier, max_iter=3).set_callbacks(ProgressBar()).fit(*IRIS)
    assert "DNNClassifier - fit" in (alone := capsys.readouterr().out)
    assert "100%" in alone
    search = GridSearchCV(
        make_pipeline(StandardScaler(), make(DNNClassifier)),
        {"dnnclassifier__max_iter": [2, 3]},
        cv=2,
        n_jobs=n_jobs,
    )
    search.set_callbacks(ProgressBar(max_propagation_depth=None)).fit(*IRIS)
    out = capsys.readouterr().out
    assert out.count("DNNClassifier - fit") == 2 * 2 + 1
    assert not hasattr(search.best_estimator_[-1], "_skl_callbacks")
