# SPDX-License-Identifier: Apache-2.0
"""What exports promise, which test proves it, and proofs that fit nowhere else."""

import ast
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from torch import nn

import skest
from skest import export
from skest.export.operators import ALLOWED_OPERATORS
from skest.heads import BinaryClassHead
from tests.adapters._families import small
from tests.export.test_estimators_onnx import CLASSES, labels_for, table

TESTS = Path(__file__).parents[1]
EXPORT = TESTS.parent / "skest" / "export"

PROMISES = {
    "ids are exactly those of NumPy, for every column and any text": [
        "export/test_columns_onnx.py::test_encodes_as_numpy",
        "export/test_columns_onnx.py::test_encodes_many_rows_as_numpy",
        "export/test_hashing_onnx.py::test_strings",
        "export/test_hashing_onnx.py::test_integers",
        "export/test_client_hashing.py::test_hashes_are_those_of_scikit_learn",
    ],
    "probabilities are within 1e-5, classes are equal, for every head": [
        "export/test_heads_onnx.py::test_predicts_as_the_head",
        "export/test_estimators_onnx.py::test_every_estimator_on_a_mixed_table",
        "export/test_writer.py::test_the_export_predicts_what_the_estimator_does",
        "export/test_spec_export.py::test_classifiers",
        "export/test_features_onnx.py::test_sums_of_long_lists_are_exact",
    ],
    "hashes are those of scikit-learn, integer crosses those of TensorFlow": [
        "export/test_hashing_onnx.py::test_known_hashes",
        "golden/test_feature_columns_onnx.py::test_case",
    ],
    "signatures are those of tf.estimator": [
        "golden/test_signatures.py::test_signatures"
    ],
    "without parity nothing appears": [
        "export/test_writer.py::test_an_export_that_differs_does_not_appear",
        "export/test_writer.py::test_an_export_with_other_classes_does_not_appear",
        "export/test_writer.py::"
        "test_an_export_with_other_names_of_classes_does_not_appear",
    ],
    "a killed export leaves no visible broken version": [
        "faults/test_kill.py::test_every_visible_version_loads",
        "test_versioned_directory.py::test_leftovers_go_after_a_day",
        "faults/test_full_disk.py::test_what_only_reads_works_and_exports_say_what_failed",
    ],
    "hostile and damaged files are refused before anything runs": [
        "export/test_artifact.py::test_hostile_files_are_refused",
        "export/test_artifact.py::test_hostile_records_are_refused",
        "export/test_artifact.py::test_hostile_graphs_are_refused",
        "export/test_artifact.py::test_hostile_manifests_are_refused",
        "export/test_artifact.py::test_random_damage_is_refused_as_artifact_error",
        "export/test_manifest.py::test_any_value_in_any_place_of_a_manifest",
        "export/test_manifest.py::test_any_value_in_any_place_of_a_description",
        "export/test_declaration.py::test_hostile_descriptions_are_refused",
        "export/test_declaration.py::test_forged_descriptions_are_refused_or_work",
    ],
    "what serves imports neither torch nor scikit-learn, and unpickles nothing": [
        "export/test_runtime.py::test_serving_imports_neither_torch_nor_sklearn",
        "export/test_runtime.py::test_serving_has_no_way_to_run_code_of_a_file",
        "export/test_promises.py::test_no_module_unpickles",
    ],
    "the same file runs in the oldest engine, in Node and as WebAssembly": [
        "export/test_engines.py::test_the_oldest_supported_version",
        "export/test_engines.py::test_the_oldest_supported_version_takes_empty_lists",
        "export/test_engines.py::test_engines_of_javascript",
        "export/test_engines.py::test_engines_of_javascript_take_empty_lists",
        "integration/test_web.py::test_the_page_shows_what_the_estimator_predicts",
    ],
    "a row alone gives what it gives among others": [
        "export/test_columns_onnx.py::test_rows_do_not_depend_on_each_other",
        "export/test_runtime.py::test_a_row_alone_gives_what_it_gives_among_others",
        "export/test_promises.py::test_rows_of_every_estimator_stand_alone",
    ],
    "nodes have names, and operators are those of a short list": [
        "export/test_estimators_onnx.py::test_every_estimator_on_a_mixed_table",
        "export/test_promises.py::test_traced_graphs_run_anywhere",
    ],
    "exporters go on after a restart, and never collide": [
        "export/test_exporters.py::test_best_goes_on_in_another_process",
        "export/test_exporters.py::test_best_goes_on_wherever_it_was_stopped",
        "export/test_exporters.py::test_latest",
        "export/test_spec_export.py::test_sixteen_threads",
        "test_versioned_directory.py::test_threads_get_versions_of_their_own",
    ],
    "pipelines of scikit-learn are converted whole": [
        "export/test_skl2onnx.py::test_column_transformer_and_grid_search"
    ],
    "skops asks for one type; pickle and joblib work": [
        "adapters/test_pickling.py::test_every_estimator",
        "adapters/test_pickling.py::test_skops_refuses_what_is_not_trusted",
    ],
    "large weights lie beside a small graph, for any reader of safetensors": [
        "export/test_writer.py::test_weights_beside_the_graph",
        "export/test_writer.py::test_weights_beside_the_graph_if_they_are_large",
    ],
    "an export becomes the estimator again, without pickle": [
        "export/test_declaration.py::test_round_trip",
        "export/test_declaration.py::test_goes_on_training",
        "export/test_rebuilt_functions.py::test_estimators_of_scikit_learn",
        "export/test_rebuilt_functions.py::test_the_core_estimator",
    ],
    "dropout is off, running statistics are used, and training is not disturbed": [
        "export/test_nets_onnx.py::test_batch_norm_and_dropout",
        "export/test_estimators_onnx.py::test_writing_changes_nothing",
        "export/test_promises.py::test_training_goes_on_as_if_nothing_was_exported",
    ],
}


@pytest.mark.parametrize("promise", PROMISES)
def test_the_named_tests_exist(promise):
    for place in PROMISES[promise]:
        path, _, name = place.partition("::")
        tree = ast.parse((TESTS / path).read_text(encoding="utf-8"))
        assert name in {n.name for n in tree.body if isinstance(n, ast.FunctionDef)}


@pytest.mark.parametrize("path", sorted(EXPORT.rglob("*.py")), ids=lambda p: p.stem)
def test_no_module_unpickles(path):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    imports = (n for n in ast.walk(tree) if isinstance(n, ast.Import | ast.ImportFrom))
    names = {
        name
        for node in imports
        for name in (getattr(node, "module", None), *(a.name for a in node.names))
        if name
    }
    roots = {name.partition(".")[0] for name in names}
    assert not roots & {"pickle", "cloudpickle", "joblib", "dill", "shelve", "marshal"}
    calls = {ast.unparse(n.func) for n in ast.walk(tree) if isinstance(n, ast.Call)}
    assert not calls & {"torch.load", "np.load", "eval", "exec"}


@pytest.mark.parametrize("estimator_class", CLASSES, ids=lambda c: c.__name__)
def test_rows_of_every_estimator_stand_alone(tmp_path, estimator_class):
    estimator, X = small(estimator_class), table()
    model = export.load(estimator.fit(X, labels_for(estimator)).export(tmp_path))
    together = model.run(X, "predict")
    for i in range(0, len(X), 9):
        for name, values in model.run(X[i : i + 1], "predict").items():
            if values.dtype.kind == "f":
                np.testing.assert_allclose(
                    values[0], together[name][i], rtol=1e-6, atol=1e-6
                )
            else:
                np.testing.assert_array_equal(values[0], together[name][i])


NUMBERS = np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32)
LABELS = (NUMBERS[:, 0] > 0).astype(np.int64)


class Noisy(nn.Module):
    """What predicts in another way than it trains, and has to be traced."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(3, 8)
        self.norm = nn.BatchNorm1d(8)
        self.drop = nn.Dropout(0.5)
        self.out = nn.Linear(8, 1)

    def forward(self, x):
        x = self.norm(self.first(x))
        return self.out(self.drop(x * x.sigmoid()))


def noisy_model_fn(features, labels, mode):
    network = Noisy()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    return BinaryClassHead().create_estimator_spec(
        features, mode, network, labels, optimizer
    )


def trained():
    config = skest.RunConfig(random_seed=0)
    estimator = skest.Estimator(noisy_model_fn, config=config)
    return estimator.train(lambda: [(NUMBERS, LABELS)] * 5)


def test_traced_graphs_run_anywhere(tmp_path):
    pytest.importorskip("onnxscript")
    graph = onnx.load(trained().export(tmp_path) / "model.onnx").graph
    names = [node.name for node in graph.node]
    assert all(names) and len(set(names)) == len(names)
    assert {(node.domain, node.op_type) for node in graph.node} <= ALLOWED_OPERATORS
    assert all(v.type.HasField("tensor_type") for v in (*graph.input, *graph.output))


def test_training_goes_on_as_if_nothing_was_exported(tmp_path):
    pytest.importorskip("onnxscript")
    estimator, other = trained(), trained()
    before = torch.get_rng_state(), np.random.get_state()[1].copy()
    model = export.load(estimator.export(tmp_path))
    assert torch.equal(torch.get_rng_state(), before[0])
    np.testing.assert_array_equal(np.random.get_state()[1], before[1])
    (expected,) = estimator.predict(lambda: [NUMBERS], yield_single_examples=False)
    found = model("predict", x=NUMBERS)["probabilities"]
    np.testing.assert_allclose(found, expected["probabilities"], atol=1e-5)
    for one in (estimator, other):
        one.train(lambda: [(NUMBERS, LABELS)] * 5)
    variables = other.checkpoint.variables
    for name, value in estimator.checkpoint.variables.items():
        assert torch.equal(value, variables[name]), name
