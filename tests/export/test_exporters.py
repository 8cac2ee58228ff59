# SPDX-License-Identifier: Apache-2.0
import importlib.util
import json
import logging
import math
from functools import partial

import numpy as np
import pytest
import torch

from skest import Estimator
from skest.checkpoints.checkpoint import Checkpoint
from skest.checkpoints.versions import list_versions, write_version
from skest.export import BestExporter, Exporter, FinalExporter, LatestExporter
from tests._models import model_fn, raising


@pytest.fixture
def estimator(tmp_path):
    estimator = Estimator(model_fn, tmp_path)
    variables = {"weight": torch.zeros(1, 3), "bias": torch.zeros(1)}
    estimator.checkpoint = Checkpoint(1, variables)
    return estimator


def export(exporter, estimator, final=False, **result):
    """Call an exporter as training does; tell whether it exported."""
    base = estimator.model_dir / "export" / exporter.name
    before = list_versions(base)
    path = exporter.export(
        estimator=estimator,
        export_path=base,
        checkpoint_path=estimator.latest_checkpoint(),
        eval_result={"global_step": 1, **result},
        is_the_final_export=final,
    )
    assert path is None or path in set(list_versions(base)) - set(before)
    return path is not None


def n_versions(exporter, estimator):
    return len(list_versions(estimator.model_dir / "export" / exporter.name))


def test_final(estimator):
    exporter = FinalExporter("final", format="checkpoint")
    assert [export(exporter, estimator, f) for f in (False, True)] == [False, True]


@pytest.mark.parametrize(("keep", "left"), [(None, 3), (2, 2)])
def test_latest(estimator, keep, left):
    exporter = LatestExporter("latest", exports_to_keep=keep, format="checkpoint")
    assert all(export(exporter, estimator) for _ in range(3))
    assert n_versions(exporter, estimator) == left


def test_best(estimator):
    exporter = BestExporter(exports_to_keep=2, format="checkpoint")
    losses = [3.0, 4.0, 2.0, 2.0, math.nan, 1.0]
    exported = [export(exporter, estimator, loss=loss) for loss in losses]
    assert exported == [True, False, True, False, False, True]
    assert n_versions(exporter, estimator) == 2
    path = estimator.model_dir / "export" / "best_exporter" / "best.json"
    record = json.loads(path.read_text())
    assert record["result"] == {"global_step": 1, "loss": 1.0}
    assert record["before"] == {"global_step": 1, "loss": 2.0}


def test_best_goes_on_in_another_process(estimator):
    assert export(BestExporter(format="checkpoint"), estimator, loss=3.0)
    assert not export(BestExporter(format="checkpoint"), estimator, loss=4.0)
    assert export(BestExporter(format="checkpoint"), estimator, loss=2.0)
    assert export(BestExporter("another", format="checkpoint"), estimator, loss=4.0)


@pytest.mark.parametrize("content", [b"", b'{"x": 1}'])
def test_a_damaged_best_result_is_no_result(estimator, caplog, content):
    assert export(BestExporter(format="checkpoint"), estimator, loss=1.0)
    path = estimator.model_dir / "export" / "best_exporter" / "best.json"
    path.write_bytes(content)
    with caplog.at_level(logging.WARNING, "skest"):
        assert export(BestExporter(format="checkpoint"), estimator, loss=2.0)
    (record,) = caplog.records
    assert str(path) in record.getMessage()
    assert "counts as the best one" in record.getMessage()
    assert not export(BestExporter(format="checkpoint"), estimator, loss=3.0)


def test_what_could_not_be_exported_is_not_the_best(estimator, monkeypatch):
    assert export(BestExporter(format="checkpoint"), estimator, loss=3.0)
    with monkeypatch.context() as patch, pytest.raises(OSError, match="full"):
        patch.setattr(Estimator, "export", raising(OSError("full")))
        export(BestExporter(format="checkpoint"), estimator, loss=1.0)
    assert export(BestExporter(format="checkpoint"), estimator, loss=2.0)


def test_a_rule_of_the_users(estimator):
    def auc_larger(best_eval_result, current_eval_result):
        return current_eval_result["auc"] > best_eval_result["auc"]

    exporter = BestExporter("best_auc", auc_larger, format="checkpoint")
    exported = [export(exporter, estimator, auc=auc) for auc in (0.5, 0.4, 0.6)]
    assert exported == [True, False, True]


class Lossy:
    """Writes the loss of a version into it; one export ends before, one after that."""

    def __init__(self, loss, ends=None):
        self.result = {"global_step": 1, "loss": loss}
        self._ends = ends

    def export(self, base, **more):
        if self._ends == "before":
            raise KeyboardInterrupt
        loss = self.result["loss"]
        version = write_version(base, lambda d: (d / "loss").write_text(str(loss)))
        if self._ends == "after":
            raise KeyboardInterrupt
        return version


@pytest.mark.parametrize(
    ("ends", "left"),
    [
        ([None, "after", None], [1.0, 0.5]),
        ([None, "before", None], [1.0, 0.8]),
        (["after", "after", "after"], [1.0, 0.5]),
        (["before", "before", None], [0.8]),
        ([None, "before", "before", None], [1.0, 0.9]),
    ],
)
@pytest.mark.parametrize("keep", [1, 5])
def test_best_goes_on_wherever_it_was_stopped(tmp_path, ends, left, keep):
    for loss, end in zip([1.0, 0.5, 0.8, 0.9], ends, strict=False):
        exporter = BestExporter(exports_to_keep=keep, format="checkpoint")
        estimator = Lossy(loss, end)
        try:
            exporter.export(estimator, tmp_path, None, estimator.result, False)
        except KeyboardInterrupt:
            pass
    found = [float((path / "loss").read_text()) for path in list_versions(tmp_path)]
    # What was stopped had no time to remove the old ones; the best is always there.
    assert found == left or (keep == 1 and found == left[-1:])


def test_nan_is_never_exported(estimator):
    losses = [math.nan, 1.0, 0.8, 0.9, math.nan, 0.7]
    exporter = BestExporter(format="checkpoint")
    exported = [export(exporter, estimator, loss=loss) for loss in losses]
    assert exported == [False, True, True, False, False, True]


@pytest.mark.parametrize(
    ("mode", "expected"),
    [("max", [False, True, False, True]), ("min", [False, True, True, False])],
)
def test_metric(estimator, mode, expected):
    exporter = BestExporter(metric="auc", mode=mode, format="checkpoint")
    values = [math.nan, 0.5, 0.4, 0.6]
    found = [export(exporter, estimator, auc=auc, loss=1.0) for auc in values]
    assert found == expected
    with pytest.raises(ValueError, match=r"compares the 'auc' of evaluations"):
        export(exporter, estimator, loss=1.0)


@pytest.mark.parametrize(
    ("given", "error", "match"),
    [
        ({"metric": 3}, TypeError, "'metric' of a BestExporter must be the name"),
        ({"metric": "auc", "mode": "up"}, ValueError, "one of 'min', 'max'; got 'up'"),
        (
            {"metric": "auc", "compare_fn": lambda **results: True},
            ValueError,
            "either 'compare_fn' or 'metric' and 'mode'; got both",
        ),
    ],
)
def test_wrong_metrics(given, error, match):
    with pytest.raises(error, match=match):
        BestExporter(**given)


def test_arrays_are_not_compared(estimator):
    exporter = BestExporter(metric="counts", format="checkpoint")
    match = "'counts' of evaluations, but it is an array, .* numbers are .*'loss'"
    with pytest.raises(ValueError, match=match):
        export(exporter, estimator, loss=1.0, counts=np.arange(3))


def test_assets(estimator, tmp_path):
    source = tmp_path / "words"
    source.write_text("one")
    for kind in (FinalExporter, LatestExporter, BestExporter):
        exporter = kind("x", assets={"words": source}, format="checkpoint")
        assert export(exporter, estimator, final=True, loss=1.0)
        newest = list_versions(tmp_path / "export" / "x")[-1]
        assert (newest / "assets" / "words").read_text() == "one"


@pytest.mark.parametrize("kind", [FinalExporter, LatestExporter, BestExporter])
def test_names(kind):
    assert kind("a name").name == "a name"
    for name in ("", ".", "..", "a/b", "/a"):
        with pytest.raises(ValueError, match="must be the name of a directory"):
            kind(name)
    with pytest.raises(
        TypeError, match="'name' of an exporter must be a string; got 3"
    ):
        kind(3)


@pytest.mark.parametrize("kind", [LatestExporter, BestExporter])
@pytest.mark.parametrize(("keep", "error"), [(0, ValueError), (1.5, TypeError)])
def test_exports_to_keep(kind, keep, error):
    with pytest.raises(error, match="'exports_to_keep' of exporter 'x' must be an int"):
        kind("x", exports_to_keep=keep)


@pytest.mark.parametrize(
    ("compare_fn", "error", "match"),
    [
        (None, ValueError, "must be a function .* got None: .* Leave it out"),
        ("loss", TypeError, "must be a function; got 'loss'"),
        (lambda a, b: True, ValueError, "'best_eval_result' and 'current_eval_result'"),
    ],
)
def test_compare_fn(compare_fn, error, match):
    with pytest.raises(error, match=match):
        BestExporter(compare_fn=compare_fn)


def test_no_loss(estimator):
    with pytest.raises(ValueError, match="there is only 'global_step', 'auc'. Pass an"):
        export(BestExporter(format="checkpoint"), estimator, auc=0.5)


def test_an_exporter_exports():
    with pytest.raises(TypeError, match="abstract"):
        Exporter("x")


@pytest.mark.parametrize("kind", [FinalExporter, LatestExporter, BestExporter])
def test_format(kind):
    with pytest.raises(
        ValueError, match="'format' must be one of 'onnx', 'checkpoint'"
    ):
        kind("x", format="pickle")


@pytest.mark.parametrize(
    "make", [BestExporter, partial(LatestExporter, "a"), partial(FinalExporter, "a")]
)
def test_packages_are_missed_before_the_training(monkeypatch, make):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match="needs onnx and onnxruntime.*'checkpoint'"):
        make()
