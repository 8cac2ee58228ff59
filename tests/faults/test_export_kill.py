# SPDX-License-Identifier: Apache-2.0
"""A process that exports is killed at any moment: what can be seen is whole."""

import random
import time

import numpy as np
import pytest

import skest
from skest import export
from skest.versioned_directory import list_versions
from tests import _forkserver


def export_without_end(base, ready):
    X = np.random.default_rng(0).normal(size=(40, 5))
    model = skest.DNNClassifier((256, 256), max_iter=1).fit(X, X[:, 0] > 0)
    ready.set()
    while True:
        model.export(base)


@pytest.mark.parametrize(
    "n_kills", [3, pytest.param(60, marks=[pytest.mark.slow, pytest.mark.timeout(600)])]
)
def test_every_visible_version_loads(tmp_path, n_kills):
    context = _forkserver.context()
    rng, checked = random.Random(n_kills), set()
    for _ in range(n_kills):
        ready = context.Event()
        process = context.Process(target=export_without_end, args=(tmp_path, ready))
        process.start()
        assert ready.wait(60)
        time.sleep(rng.uniform(0.02, 0.4))
        process.kill()
        process.join()
        for version in set(list_versions(tmp_path)) - checked:
            export.load(version)
            checked.add(version)
    assert checked
