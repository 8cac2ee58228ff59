# SPDX-License-Identifier: Apache-2.0
import pytest

from skest import Estimator, RunConfig
from skest.checkpoints.results import read_eval_results
from tests._models import model_fn, table_fn
from tests.hooks._events import event_files, scalars


@pytest.fixture
def estimator(tmp_path):
    config = RunConfig(
        random_seed=0, save_checkpoints_steps=2, keep_checkpoint_max=None
    )
    return Estimator(model_fn, tmp_path, config).train(table_fn(num_epochs=2))


def shown(directory):
    """Return the metrics by step, as `read_eval_results` does."""
    found = {}
    for name, values in scalars(directory).items():
        for step, value in values.items():
            found.setdefault(step, {"global_step": step})[name] = value
    return found


def test_every_directory_has_its_metrics(estimator):
    estimator.evaluate(table_fn())
    estimator.evaluate(table_fn(n_rows=8), name="small")
    for name in (None, "small"):
        directory = estimator.eval_dir(name)
        assert len(event_files(directory)) == 1
        assert shown(directory) == {
            step: pytest.approx(metrics)
            for step, metrics in read_eval_results(directory).items()
        }
        assert set(shown(directory)[10]) == {"loss", "mean", "global_step"}
