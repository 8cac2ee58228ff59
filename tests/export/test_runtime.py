# SPDX-License-Identifier: Apache-2.0
import ast
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnxruntime
import pandas as pd
import pytest

import skest
from skest import export
from skest.exceptions import ArtifactError
from tests.export import _models

ROWS = {"city": ["red", None, "blue"], "age": [1, 0.5, -3.0], "tags": [[1], [], None]}
EXPORT = Path(skest.__file__).parent / "export"


def expected():
    logits = np.array([1 + 1 + 1, 0.5, 0.5 - 3], np.float32)
    p = 1 / (1 + np.exp(-logits))
    return np.stack([1 - p, p], axis=1)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("base")
    _models.write(path / "1700000000")
    return export.load(path)


def test_predict(model):
    assert model.predict(ROWS).tolist() == ["yes", "yes", "no"]
    assert model.predict(pd.DataFrame(ROWS)).tolist() == ["yes", "yes", "no"]
    np.testing.assert_allclose(model.predict_proba(ROWS), expected(), atol=1e-6)


def test_signatures(model):
    np.testing.assert_allclose(model(**ROWS)["scores"], expected(), atol=1e-6)
    found = model("predict", **ROWS)
    assert set(found) == {"labels", "probabilities"}
    assert found["labels"].shape == (3, 1)
    assert set(model.signatures) == {"serving_default", "predict"}


def test_large_tables_run_piece_by_piece(model, monkeypatch):
    run, sizes = onnxruntime.InferenceSession.run, []

    def counted(session, names, feeds):
        sizes.append({len(values) for values in feeds.values()})
        return run(session, names, feeds)

    monkeypatch.setattr(onnxruntime.InferenceSession, "run", counted)
    # The longest list is in the last piece, which has one row.
    n = 2 * 8192
    rows = {name: [*(cells * n)[:n], cells[0]] for name, cells in ROWS.items()}
    rows["tags"][-1] = [1, 0, 0]
    found = model("predict", **rows)
    assert sizes == [{8192}, {8192}, {1}]
    p = np.resize(expected(), (n, 2))
    np.testing.assert_allclose(
        found["probabilities"], np.vstack([p, expected()[:1]]), atol=1e-6
    )
    assert found["labels"][-3:, 0].tolist() == ["no", "yes", "yes"]
    cells = [
        dict(zip(rows, row, strict=True)) for row in zip(*rows.values(), strict=True)
    ]
    del cells[9000]["age"]
    with pytest.raises(ValueError, match=r"Row 9000 lacks the features \['age'\]"):
        model.run(cells)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m: m("nothing", **ROWS), "no signature 'nothing'; it has"),
        (lambda m: m(**ROWS, town=["x"]), r"takes no features \['town'\]"),
        (lambda m: m(city=["red"]), r"features \['age', 'tags'\] are missing"),
        (lambda m: m(**{**ROWS, "age": [1]}), "as many rows; got {'city': 3, 'age': 1"),
    ],
)
def test_wrong_calls(model, call, message):
    with pytest.raises(ValueError, match=message):
        call(model)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"labels": [["no"], ["yes"]]}, "gives other 'labels' here"),
        ({"probabilities": [[0.5, 0.5], [0.5, 0.5]]}, "other 'probabilities' here"),
        ({"nothing": [[1]]}, "'warmup.json' does not fit"),
    ],
)
def test_recorded_rows_are_compared(tmp_path, change, message):
    recorded = _models.warmup()
    recorded["outputs"].update(change)
    _models.write(tmp_path, recorded=recorded)
    with pytest.raises(ArtifactError, match=message):
        export.load(tmp_path)
    export.load(tmp_path, verify=False)


def test_no_directory(tmp_path):
    with pytest.raises(FileNotFoundError, match="There is no directory"):
        export.load(tmp_path / "nothing")


@pytest.fixture(scope="module")
def imported(model):
    """The modules that are there once a model was loaded, asked and served."""
    code = f"""
import sys
from skest import export
from skest.command_line import serve
model = export.load({str(model.path)!r})
model.predict({ROWS!r})
with export.ModelServer({{"m": {str(model.path)!r}}}, port=0):
    print(*sys.modules)
"""
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    return run.stdout.split()


def test_serving_imports_neither_torch_nor_sklearn(imported):
    heavy = {"torch", "sklearn", "onnx", "joblib", "cloudpickle", "pandas", "scipy"}
    assert not heavy & set(imported)


def test_without_onnxruntime(tmp_path, monkeypatch):
    _models.write(tmp_path)
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(ImportError, match=r"pip install onnxruntime"):
        export.load(tmp_path)


@pytest.mark.parametrize("path", EXPORT.rglob("*.py"), ids=lambda path: path.stem)
def test_no_module_unpickles(path):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    roots = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [getattr(node, "module", None), *(a.name for a in node.names)]
            roots |= {name.partition(".")[0] for name in names if name}
    assert not roots & {"pickle", "cloudpickle", "joblib", "dill", "shelve", "marshal"}
    calls = {ast.unparse(n.func) for n in ast.walk(tree) if isinstance(n, ast.Call)}
    assert not calls & {"torch.load", "np.load", "eval", "exec"}
