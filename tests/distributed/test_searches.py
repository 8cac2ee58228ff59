# SPDX-License-Identifier: Apache-2.0
"""Searches over parameters whose fits run on the workers of a cluster."""

import joblib
import numpy as np
import pandas as pd
import pytest
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

from skest import DNNLinearCombinedClassifier, RunConfig
from skest.distributed import AsyncParameterServer


@pytest.fixture(scope="module")
def table():
    rng = np.random.default_rng(0)
    word = rng.choice(["a", "b", "c"], 120)
    number = rng.normal(size=120)
    return pd.DataFrame({"word": word, "number": number}), (word == "a") ^ (number > 1)


@pytest.fixture(scope="module")
def cluster():
    """Two worker processes of dask on this machine."""
    distributed = pytest.importorskip("distributed")
    with (
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, dashboard_address=None
        ) as cluster,
        distributed.Client(cluster),
    ):
        yield


def search(**settings):
    model = DNNLinearCombinedClassifier((4,), max_iter=3, random_state=0, **settings)
    pipeline = make_pipeline(FunctionTransformer(), model)
    name = "dnnlinearcombinedclassifier__dnn_learning_rate"
    return GridSearchCV(pipeline, {name: [0.01, 0.1]}, cv=2, error_score="raise")


@pytest.mark.nightly
def test_a_search_on_dask(table, cluster):
    alone = search().fit(*table)
    with joblib.parallel_config(backend="dask"):
        found = search().fit(*table)
    assert found.best_params_ == alone.best_params_
    for name in ("split0_test_score", "split1_test_score"):
        np.testing.assert_array_equal(found.cv_results_[name], alone.cv_results_[name])
    np.testing.assert_array_equal(
        found.predict_proba(table[0]), alone.predict_proba(table[0])
    )


@pytest.mark.nightly
def test_clusters_in_a_search_on_dask_are_refused(table, cluster):
    config = RunConfig(train_distribute=AsyncParameterServer(2, 1))
    with (
        joblib.parallel_config(backend="dask"),
        pytest.raises(RuntimeError, match="they would multiply"),
    ):
        search(config=config).fit(*table)
