# SPDX-License-Identifier: Apache-2.0
import importlib.util
import math
from functools import partial

import numpy as np
import pytest
import torch

from skest import Estimator
from skest.checkpoints.checkpoint import Checkpoint
from skest.core.files import list_versions
from skest.export import BestExporter, Exporter, FinalExporter, LatestExporter
from tests._models import model_fn, raising

KINDS = [BestExporter, partial(LatestExporter, "a"), partial(FinalExporter, "a")]
Best = partial(BestExporter, format="checkpoint")


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


def versions(exporter, estimator):
    return list_versions(estimator.model_dir / "export" / exporter.name)


def test_versions_without_a_result_count_as_none(estimator, caplog):
    assert export(Best(), estimator, loss=1.0)
    (version,) = versions(Best(), estimator)
    (version / "assets" / "eval_result.json").unlink()
    assert export(Best(), estimator, loss=2.0)
    assert f"{version} has no eval_result.json" in caplog.text
    assert not export(Best(), estimator, loss=3.0)


def test_what_could_not_be_exported_is_not_the_best(estimator, monkeypatch):
    assert export(Best(), estimator, loss=3.0)
    with monkeypatch.context() as patch, pytest.raises(OSError, match="full"):
        patch.setattr(Estimator, "export", raising(OSError("full")))
        export(Best(), estimator, loss=1.0)
    assert export(Best(), estimator, loss=2.0)


@pytest.mark.parametrize(
    ("mode", "expected"),
    [("max", [False, True, False, True]), ("min", [False, True, True, False])],
)
def test_metric(estimator, mode, expected):
    exporter = Best(metric="auc", mode=mode)
    values = [math.nan, 0.5, 0.4, 0.6]
    found = [export(exporter, estimator, auc=auc, loss=1.0) for auc in values]
    assert found == expected
    with pytest.raises(ValueError, match=r"compares the 'auc' of evaluations"):
        export(exporter, estimator, loss=1.0)
    match = "'counts' of evaluations, but it is an array, .* numbers are .*'loss'"
    with pytest.raises(ValueError, match=match):
        export(Best(metric="counts"), estimator, loss=1.0, counts=np.arange(3))


def test_assets(estimator, tmp_path):
    source = tmp_path / "words"
    source.write_text("one")
    exporter = LatestExporter("x", assets={"words": source}, format="checkpoint")
    assert export(exporter, estimator, loss=1.0)
    (version,) = versions(exporter, estimator)
    assert (version / "assets" / "words").read_text() == "one"


@pytest.mark.parametrize(
    ("given", "error", "match"),
    [
        ({"name": "a/b"}, ValueError, "must be the name of a directory"),
        ({"name": 3}, TypeError, "'name' of an exporter must be a string; got 3"),
        ({"assets": "x"}, TypeError, "'assets' of an exporter must be a dictionary"),
        ({"exports_to_keep": 0}, ValueError, "'exports_to_keep' of exporter 'best_ex"),
        ({"format": "pickle"}, ValueError, "'format' of an export must be one of"),
        ({"metric": 3}, TypeError, "'metric' of a BestExporter must be the name"),
        (
            {"metric": "auc", "compare_fn": lambda **results: True},
            ValueError,
            "either 'compare_fn' or 'metric' and 'mode'; got both",
        ),
        ({"compare_fn": None}, ValueError, "a function .* got None: .* Leave it out"),
        ({"compare_fn": 3}, TypeError, "must be a function .* got 3"),
        ({"compare_fn": max}, ValueError, "must be a function .* no signature"),
        (
            {"compare_fn": lambda a, b: True},
            ValueError,
            "'best_eval_result' and 'current_eval_result'",
        ),
    ],
)
def test_wrong_arguments(given, error, match):
    with pytest.raises(error, match=match):
        BestExporter(**given)


def test_an_exporter_exports():
    with pytest.raises(TypeError, match="abstract"):
        Exporter("x")


@pytest.mark.parametrize("make", KINDS)
def test_packages_are_missed_before_the_training(monkeypatch, make):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match="needs onnx and onnxruntime.*'checkpoint'"):
        make()
