# SPDX-License-Identifier: Apache-2.0
"""A process that exports is killed at any moment: what can be seen is whole."""

import importlib.util
import random
import signal
import time

import numpy as np
import pytest
import torch
from torch import nn

import skest
from skest import export
from skest.export import BestExporter
from skest.heads import BinaryClassHead
from skest.versioned_directory import list_versions, write_version
from tests import _forkserver
from tests.faults._dying import save_until

X = np.random.default_rng(0).normal(size=(40, 5)).astype(np.float32)
Y = X[:, 0] > 0


def canned():
    return skest.DNNClassifier((256, 256), max_iter=1).fit(X, Y)


class Cross(nn.Module):
    """A module that torch has to trace."""

    def __init__(self):
        super().__init__()
        self.cross = nn.Linear(5, 5)
        self.logits = nn.Linear(5, 1)

    def forward(self, x):
        return self.logits(x * self.cross(x))


def model_fn(features, labels, mode):
    network = Cross()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    return BinaryClassHead().create_estimator_spec(
        features, mode, network, labels, optimizer
    )


def traced():
    return skest.Estimator(model_fn).train(lambda: [(X, Y.astype(np.int64))])


def export_without_end(make, base):
    model = make()
    while True:
        model.export(base)


def kill_while_exporting(make, base, seconds):
    """Let a process export, and kill it `seconds` after it has begun to write."""
    before = set(base.iterdir())
    process = _forkserver.context().Process(
        target=export_without_end, args=(make, base)
    )
    process.start()
    end = time.monotonic() + 120
    while set(base.iterdir()) <= before:
        assert process.is_alive() and time.monotonic() < end
        time.sleep(0.002)
    time.sleep(seconds)
    process.kill()
    process.join()


needs_onnxscript = pytest.mark.skipif(
    importlib.util.find_spec("onnxscript") is None, reason="needs onnxscript"
)


def many(make, n_kills, longest, *marks):
    marks = [pytest.mark.slow, pytest.mark.timeout(900), *marks]
    return pytest.param(make, n_kills, longest, marks=marks)


@pytest.mark.parametrize(
    ("make", "n_kills", "longest"),
    [
        (canned, 3, 0.4),
        many(canned, 60, 0.4),
        # Writing it takes some hundredths of a second, tracing comes before.
        many(traced, 60, 0.06, needs_onnxscript),
    ],
)
def test_every_visible_version_loads(tmp_path, make, n_kills, longest):
    rng, checked = random.Random(n_kills), set()
    for _ in range(n_kills):
        kill_while_exporting(make, tmp_path, rng.uniform(0, longest))
        for version in set(list_versions(tmp_path)) - checked:
            export.load(version)
            checked.add(version)
    # What is left of the others does not hinder the next one, which removes it.
    newest = make().export(tmp_path)
    assert export.latest(tmp_path) == newest
    assert export.load(tmp_path).path == newest
    assert [p.name for p in tmp_path.iterdir() if not p.name.isdecimal()] == []


class Writes:
    """Exports a file, which takes no time."""

    def export(self, base, **options):
        return write_version(base, lambda path: (path / "file").write_text("whole"))


def export_best(base, loss):
    exporter = BestExporter(exports_to_keep=1, format="checkpoint")
    result = {"global_step": 1, "loss": loss}
    exporter.export(Writes(), base, base, result, False)


def test_every_moment_of_exporting_the_best(tmp_path):
    """And of deleting the version before."""
    context = _forkserver.context()
    for n_operations in range(1000):
        base = tmp_path / str(n_operations)
        export_best(base, 3.0)
        process = context.Process(
            target=save_until, args=(n_operations, export_best, base, 2.0)
        )
        process.start()
        process.join()
        versions = list_versions(base)
        assert versions
        assert {(path / "file").read_text() for path in versions} == {"whole"}
        export_best(base, 1.0)
        (newest,) = list_versions(base)
        assert {path.name for path in base.iterdir()} == {newest.name, "best.json"}
        if process.exitcode == 0:
            break
        assert process.exitcode == -signal.SIGKILL
    assert n_operations > 10
