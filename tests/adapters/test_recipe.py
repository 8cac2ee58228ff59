"""What "auto" stands for: the training recipe of networks on tables."""

import pickle

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import log_loss

from skest import DNNClassifier, DNNRegressor, RunConfig, export
from skest.adapters.skorch import skorch_features, to_skorch
from skest.adapters.targets.classes import temperature_of
from skest.feature_columns import (
    categorical_column_with_vocabulary_list,
    embedding_column,
    numeric_column,
)
from skest.hooks import Hook
from skest.optimizers.schedules import CosineCycles


@pytest.fixture(scope="module")
def table():
    rng = np.random.default_rng(0)
    X = pd.DataFrame(
        {
            "age": rng.uniform(0, 80, 300),
            "town": rng.choice([f"t{i}" for i in range(30)], 300),
        }
    )
    odds = np.where((X["age"] > 20) & (X["age"] < 50), 2, -2)
    return X, np.where(rng.logistic(size=300) < odds, "yes", "no")


def recipe(**parameters):
    # A third of 300 rows is enough to hold out one part, which is quicker than five.
    own = {"n_members": 1, "validation_fraction": 0.34, "random_state": 0}
    return DNNClassifier((16,), **own | parameters)


def test_says_what_it_chose(table):
    model = recipe(max_steps=20).fit(*table)
    chosen = model.auto_params_
    assert chosen["max_iter"] == 125
    assert chosen["batch_size"] == 32
    assert chosen["early_stopping"] is True
    assert isinstance(chosen["learning_rate"], CosineCycles)
    # A fifth of the steps, and of the epochs, is left for all rows.
    assert chosen["learning_rate"].n_steps == 16
    assert model.n_steps_ == 20
    rate = recipe(max_iter=3, batch_size=10).fit(*table).auto_params_["learning_rate"]
    assert rate.n_steps == 2 * 20  # of 198 rows


def test_goes_on_with_all_rows_for_another_cycle(table, capsys):
    model = recipe(max_iter=60, verbose=1).fit(*table)
    scores = model.validation_scores_
    ends = CosineCycles(1, 1).ends(48)
    assert len(scores) in ends
    best = 1 + int(np.argmax(scores))
    n_last = max(1, min(end for end in ends if end >= best) // 4)
    assert model.n_iter_ == len(scores) + n_last == len(model.loss_curve_)
    # From the best state after batches of 32 of 198 rows, then of all 300.
    assert model.n_steps_ == best * 7 + n_last * 10
    assert model.best_validation_score_ == max(scores)
    said = capsys.readouterr().out
    s = "s" * (n_last > 1)
    assert f"Training on all 300 rows, for {n_last} epoch{s}\n" in said


@pytest.mark.parametrize(
    ("least", "n_iter", "n_steps"),
    [({"max_iter": 1}, 1, 7), ({"max_iter": 2}, 2, 17), ({"max_steps": 1}, 1, 1)],
)
def test_never_trains_longer_than_asked(table, least, n_iter, n_steps):
    model = recipe(**least).fit(*table)
    assert (model.n_iter_, model.n_steps_) == (n_iter, n_steps)


@pytest.mark.parametrize("rows_of", ["fit", "early_stopping", "partial_fit"])
def test_few_rows_are_all_trained_on_with_many_members_if_they_are_all(table, rows_of):
    X, y = table[0][:40], table[1][:40]
    model = recipe(n_members="auto", max_iter=2)
    if rows_of == "partial_fit":  # more are to come
        assert model.partial_fit(X, y).auto_params_["n_members"] == 3
    else:
        stopping = "auto" if rows_of == "fit" else False
        model.set_params(early_stopping=stopping).fit(X, y)
        assert model.auto_params_["n_members"] == 16
        assert not model.auto_params_.get("early_stopping")
        assert (model.n_iter_, model.validation_scores_) == (2, None)


def test_members_begin_as_signs_where_no_encoding_is_learned():
    """As in TabM: nothing is so small that a member does not see it."""
    rng = np.random.default_rng(0)
    X = pd.DataFrame({name: rng.choice(list("abc"), 200) for name in "uvw"})
    for columns, are_signs in ((X, True), (X.assign(x=rng.normal(size=200)), False)):
        model = recipe(n_members=8, max_iter=1, learning_rate=1e-9).fit(
            columns, X["u"] == "a"
        )
        scales = np.abs(model.estimator_.get_variable_value("member_scales"))
        assert np.allclose(scales, 1, atol=1e-4) == are_signs


def test_all_steps_together_are_no_more_than_asked():
    class Count(Hook):
        n_steps = 0

        def after_step(self, run, loss):
            type(self).n_steps += 1

    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(300, 3)), rng.integers(2, size=300)
    recipe(max_steps=67, hooks=[Count()]).fit(X, y)
    assert 0 < Count.n_steps <= 67


def test_few_rows_are_held_out_in_turn(table, capsys):
    model = recipe(verbose=1, max_iter=10, validation_fraction=0.1).fit(*table)
    said = capsys.readouterr().out
    assert [f"Fold {k} of 5 is held out" in said for k in range(1, 7)] == [True] * 5 + [
        False
    ]
    scores = model.validation_scores_
    assert model.n_iter_ in CosineCycles(1, 1).ends(10)
    assert model.n_steps_ == model.n_iter_ * 10
    assert model.best_validation_score_ == scores[model.n_iter_ - 1]
    assert f"Training on all 300 rows, for {model.n_iter_} epochs" in said


def test_labels_of_noise_are_trained_on_for_a_short_time():
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(400, 10)), rng.integers(2, size=400)
    model = recipe(validation_fraction=0.1).fit(X, y)
    assert model.n_iter_ <= CosineCycles(1, 1).ends(100)[0]
    X, y = rng.normal(size=(400, 10)), rng.integers(2, size=400)
    assert log_loss(y, model.predict_proba(X)) < 0.73


@pytest.mark.parametrize("n_rows", [100, 1_000])
def test_class_weights_weigh_the_rows_that_are_held_out(n_rows):
    """Else the epoch and the temperature are those for other probabilities."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n_rows, 3))
    y = (X[:, 0] + rng.normal(size=n_rows) > 1.5).astype(int)
    # A column that learns nothing: class weights are for the network alone.
    settings = {"feature_columns": [numeric_column("x", shape=3)], "max_iter": 5}
    settings |= {"hidden_units": (8,), "random_state": 0}
    by_class = DNNClassifier(class_weight={0: 0.5, 1: 4.0}, **settings).fit(X, y)
    by_row = DNNClassifier(**settings).fit(X, y, np.where(y, 4.0, 0.5))
    assert by_class.validation_scores_ == by_row.validation_scores_
    np.testing.assert_array_equal(by_class.predict_proba(X), by_row.predict_proba(X))


def test_columns_learn_without_class_weights():
    """Else levels of a single row were frequent if its class is rare, and told it."""
    rng = np.random.default_rng(0)
    X = pd.DataFrame({"level": [f"l{i}" for i in rng.integers(100, size=300)]})
    y = rng.random(300) < 0.05
    learned = []
    for class_weight in (None, "balanced"):
        model = DNNClassifier((8,), max_iter=1, class_weight=class_weight).fit(X, y)
        embedding, means = model.feature_columns_.active
        learned.append((embedding.categorical.vocabulary_, means.center_.tolist()))
    assert learned[0] == learned[1]


def test_rows_of_the_caller_decide_on_the_epoch_and_are_not_trained_on(table):
    X, y = table
    model = recipe(max_iter=5)
    model.fit(X[60:], y[60:], X_val=X[:60], y_val=y[:60])
    assert model.n_steps_ <= 5 * 8
    assert len(model.validation_scores_) == 5


def test_a_training_that_goes_on_has_a_schedule_of_its_own(table):
    model = recipe(warm_start=True, max_iter=4).fit(*table)
    before = model.n_steps_
    model.fit(*table)
    rate = model.auto_params_["learning_rate"]
    assert rate.first_step == before
    assert model.n_steps_ > before


def test_a_warm_start_trains_on_behind_a_training_on_all_rows():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(2400, 3))
    y = (X[:, 0] + rng.normal(size=2400) > 0).astype(int)
    model = DNNClassifier((8,), warm_start=True, max_iter=5, random_state=0)
    steps = [model.fit(X[:n], y[:n]).n_steps_ for n in (1200, 1200, 2400)]
    assert steps == sorted(set(steps))


def test_streams_are_learned_at_a_constant_rate(table):
    X, y = table
    column = categorical_column_with_vocabulary_list("town", sorted(set(X["town"])))
    model = recipe(feature_columns=[embedding_column(column, 2)], max_iter=3)
    model.train(lambda: [(X[["town"]], y)])
    assert model.auto_params_["learning_rate"] == 0.002
    assert model.auto_params_["dropout"] == 0.1
    model.fit(X[["town"]], y).train(lambda: [(X[["town"]], y)])
    assert model.auto_params_["learning_rate"] == pytest.approx(0.0006)


def test_settings_that_are_given_are_kept(table):
    model = DNNClassifier((8,), optimizer="adagrad", learning_rate=0.05, max_iter=3)
    model.fit(*table)
    assert model.auto_params_ == {
        "batch_size": 150,  # of 300 rows
        "early_stopping": False,
        "n_iter_no_change": 10,
        "dropout": 0.0,
        "weight_decay": 0.0,
        "n_members": 1,
    }
    assert model.n_iter_ == 3


def test_a_search_over_the_rate_keeps_the_recipe(table):
    X, y = table
    given, auto = (
        recipe(max_iter=3, n_members="auto", **rate).fit(X, y)
        for rate in ({"learning_rate": 0.002}, {})
    )
    np.testing.assert_array_equal(given.predict_proba(X), auto.predict_proba(X))
    assert str(given.auto_params_) == str(auto.auto_params_)
    other = recipe(max_iter=3, learning_rate=0.01).fit(X, y)
    assert other.auto_params_["learning_rate"].peak == 0.01
    other.set_params(learning_rate=0.03).partial_fit(X, y)
    assert other.auto_params_["learning_rate"] == 0.03  # an end is not known


def test_rows_after_a_fit_have_a_lower_rate(table):
    """The full one would take away again what its fall has settled."""
    X, y = table
    model = recipe(max_iter=2).fit(X, y)
    for n_rows, share in ((64, 1), (8, 0.25), (64, 1)):
        model.partial_fit(X[:n_rows], y[:n_rows])
        assert model.auto_params_["learning_rate"] == pytest.approx(0.0006 * share)
    assert "lower and constant, for rows that come after a fit" in model.summary()


def test_a_small_first_part_says_nothing_of_those_that_follow(table):
    X, y = table
    model = recipe()
    with pytest.warns(UserWarning, match=r"partial_fit begins with 8 row.* 60 or more"):
        model.partial_fit(X[:8], y[:8], classes=np.unique(y))
    assert model.auto_params_["batch_size"] == 32
    assert model.auto_params_["dropout"] == 0.1
    assert model.auto_params_["learning_rate"] == 0.002


def test_members_do_not_go_with_batch_norm():
    X = np.zeros((40, 2)) + np.arange(40)[:, None]
    model = DNNClassifier((4,), n_members=2, batch_norm=True)
    with pytest.raises(ValueError, match="'n_members' is 2, and 'batch_norm'"):
        model.fit(X, X[:, 0] > 20)


@pytest.mark.parametrize("n_classes", [2, 4])
def test_temperature_has_the_least_loss(n_classes):
    rng = np.random.default_rng(0)
    true = rng.normal(size=(2000, n_classes))
    labels = np.argmax(true + rng.gumbel(size=true.shape), axis=1)
    logits = 3 * true
    if n_classes == 2:
        logits = logits[:, 1:] - logits[:, :1]
    temperature = temperature_of(logits, labels)
    assert temperature == pytest.approx(3, rel=0.1)
    weight = rng.integers(1, 3, 2000).astype(float)
    repeated = np.repeat(np.arange(2000), weight.astype(int))
    assert temperature_of(logits, labels, weight) == pytest.approx(
        temperature_of(logits[repeated], labels[repeated]), rel=1e-3
    )


def test_half_of_each_temperature_is_taken(monkeypatch):
    """That of the best epoch, and that of the end of its cycle."""
    X = np.random.default_rng(0).normal(size=(1_200, 2))
    y = X[:, 0] > 0
    of_rows = "skest.adapters.targets.classes.temperature_of"
    margins = []
    for temperatures in ([1.0, 1.0], [4.0, 9.0]):
        found = iter(temperatures)
        monkeypatch.setattr(of_rows, lambda *_, found=found: next(found))
        model = DNNClassifier((4,), max_iter=5, random_state=0).fit(X, y)
        margins.append(model.decision_function(X))
    np.testing.assert_allclose(margins[1], margins[0] / 6, rtol=1e-5)


@pytest.mark.parametrize("n_rows", [100, 1_200])
def test_counts_are_predicted_with_their_mean(n_rows, tmp_path):
    rng = np.random.default_rng(0)
    X, exposure = rng.normal(size=(n_rows, 2)), rng.uniform(0.1, 1, n_rows)
    rate = rng.poisson(np.exp(X[:, 0] - 2) * exposure) / exposure
    config = RunConfig(model_dir=tmp_path, log_step_count_steps=None)
    settings = {"max_iter": 2, "random_state": 0, "loss": "poisson", "config": config}
    model = DNNRegressor((8,), **settings).fit(X, rate, exposure)
    assert model.estimator_.stop_reason is not None
    for fitted in (model, pickle.loads(pickle.dumps(model))):
        mean = np.average(fitted.predict(X), weights=exposure)
        assert mean == pytest.approx(np.average(rate, weights=exposure), rel=1e-5)
    assert model.estimator_.latest_checkpoint() is not None
    # Nothing is there to be balanced by.
    none = DNNRegressor((8,), **settings).fit(X, np.zeros(n_rows))
    assert none.predict(X).max() < 1e-3
    assert np.isfinite(none.evaluate(X, np.zeros(n_rows))["average_loss"])


def test_much_too_little_confidence_is_mended_if_some_rows_are_wrong():
    logits = np.repeat([[0.1], [-0.1]], 100, axis=0)
    right = np.repeat([1, 0], 100)
    assert temperature_of(logits, right) == 1
    labels = np.tile([1] * 9 + [0], 20) ^ (1 - right)
    # The end of the range.
    assert temperature_of(logits, labels) == pytest.approx(np.exp(-2), rel=1e-3)


def test_a_temperature_is_learned_on_top_of_that_of_a_source():
    rng = np.random.default_rng(0)

    def rows(noise):
        X = rng.normal(size=(400, 4))
        return X, X[:, 0] + noise * rng.normal(size=400) > 0

    sure = recipe(max_iter=20).fit(*rows(noise=0))
    cooled = recipe(max_iter=1, warm_start_from=sure).fit(*rows(noise=3))
    model = recipe(max_iter=1, warm_start_from=cooled).fit(*rows(noise=0.3))
    X, y = rows(noise=0.3)
    assert log_loss(y, model.predict_proba(X)) < 0.3


def test_predictions_stay_within_the_range_of_the_targets(tmp_path):
    X = np.linspace(-1, 1, 200)[:, None]
    y, far = 3 * X[:, 0], np.array([[50.0], [-50.0]])
    own = {"n_members": 1, "early_stopping": False, "max_iter": 25, "random_state": 0}
    model = DNNRegressor((32,), **own)
    assert model.fit(X, y).predict(far) == pytest.approx([3, -3])
    exported = export.load(model.export(tmp_path)).predict(far)
    assert exported.ravel() == pytest.approx([3, -3])
    given = model.set_params(optimizer="adam", learning_rate=0.01).fit(X, y)
    assert abs(given.predict(far)).min() > 4
    model = DNNRegressor((32,), **own, warm_start=True).fit(X, y).fit(X, 2 * y)
    assert model.predict(far) == pytest.approx([6, -6])
    pytest.importorskip("skorch")
    net = to_skorch(model)
    assert net.predict(skorch_features(model, far)).ravel() == pytest.approx([6, -6])
