# SPDX-License-Identifier: Apache-2.0
"""The code in README.md and docs/ runs, block after block; pages are short and complete."""

import functools
import re
from pathlib import Path

import pytest

import skest

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
TEXTS = {
    page.relative_to(ROOT).as_posix(): page.read_text(encoding="utf-8")
    for page in [README, *sorted((ROOT / "docs").rglob("*.md"))]
    if page.exists()
}
BLOCK = re.compile(r"```python\n(.*?)```", re.DOTALL)
# Processes, and all checks of scikit-learn.
SLOW = re.compile(r"AsyncParameterServer\(|SharedMemory\(|n_jobs=2")
NIGHTLY = re.compile(r"check_estimator\(")


def marks(text):
    blocks = BLOCK.findall(text)
    if any(map(NIGHTLY.search, blocks)):
        return pytest.mark.nightly
    return pytest.mark.slow if any(map(SLOW.search, blocks)) else ()


PAGES = [
    pytest.param(name, marks=marks(text))
    for name, text in TEXTS.items()
    if BLOCK.search(text)
]
pytestmark = pytest.mark.skipif(not TEXTS, reason="tests run outside a checkout")

# Of TensorFlow 2.15: tf.estimator and its submodules, tf.feature_column.
SYMBOLS = """
BaselineClassifier BaselineEstimator BaselineRegressor BestExporter BinaryClassHead
CheckpointSaverHook CheckpointSaverListener DNNClassifier DNNEstimator
DNNLinearCombinedClassifier DNNLinearCombinedEstimator DNNLinearCombinedRegressor
DNNRegressor Estimator EstimatorSpec EvalSpec Exporter FeedFnHook FinalExporter
FinalOpsHook GlobalStepWaiterHook Head LatestExporter LinearClassifier LinearEstimator
LinearRegressor LoggingTensorHook LogisticRegressionHead ModeKeys MultiClassHead MultiHead
MultiLabelHead NanLossDuringTrainingError NanTensorHook PoissonRegressionHead ProfilerHook
RegressionHead RunConfig SecondOrStepTimer SessionRunArgs SessionRunContext SessionRunHook
SessionRunValues StepCounterHook StopAtStepHook SummarySaverHook TrainSpec VocabInfo
WarmStartSettings add_metrics classifier_parse_example_spec regressor_parse_example_spec
train_and_evaluate InMemoryEvaluatorHook KMeans LinearSDCA RNNClassifier RNNEstimator
build_raw_supervised_input_receiver_fn call_logit_fn dnn_logit_fn_builder
linear_logit_fn_builder make_early_stopping_hook make_stop_at_checkpoint_step_hook
stop_if_higher_hook stop_if_lower_hook stop_if_no_decrease_hook stop_if_no_increase_hook
ClassificationOutput EvalOutput ExportOutput PredictOutput RegressionOutput
ServingInputReceiver TensorServingInputReceiver build_parsing_serving_input_receiver_fn
build_raw_serving_input_receiver_fn numpy_input_fn pandas_input_fn bucketized_column
categorical_column_with_hash_bucket categorical_column_with_identity
categorical_column_with_vocabulary_file categorical_column_with_vocabulary_list
crossed_column embedding_column indicator_column make_parse_example_spec numeric_column
sequence_categorical_column_with_hash_bucket sequence_categorical_column_with_identity
sequence_categorical_column_with_vocabulary_file
sequence_categorical_column_with_vocabulary_list sequence_numeric_column shared_embeddings
weighted_categorical_column
""".split()


def words(text):
    """Count the words of a page without code, tables and what only sphinx reads."""
    text = re.sub(r"(?ms)^```.*?^```$|<!--.*?-->|^\|[^\n]*", "", text)
    return len(re.findall(r"\S*\w\S*", text))


def numbers(text):
    return [float(number) for number in re.findall(r"\d+\.\d+", text)]


def test_pages_are_short():
    assert words(TEXTS["README.md"]) <= 900
    assert sum(map(words, TEXTS.values())) <= 10_000


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", "CHANGES.md"])
def test_links_lead_somewhere(name):
    """Those of the site are checked when it is built."""
    links = re.findall(
        r"\]\((?!http)([^)#]+)", (ROOT / name).read_text(encoding="utf-8")
    )
    assert not [link for link in links if not (ROOT / link).exists()]


def test_the_page_on_migration_has_every_symbol():
    rows = re.findall(r"^\| (.*?) \|", TEXTS["docs/migration.md"], re.MULTILINE)
    named = set(re.findall(r"\w+", " ".join(re.findall("`([^`]*)`", " ".join(rows)))))
    assert not set(SYMBOLS) - named


def test_what_is_told_to_install_can_be_found():
    """Packages by their names: skest itself is only in the checkout."""
    told = []
    sources = [file.read_text("utf-8") for file in (ROOT / "skest").rglob("*.py")]
    for text in [*TEXTS.values(), *sources]:
        told += re.findall(r"pip install ([^`\n\"#]+)", text)
    assert "onnx onnxruntime" in told
    assert not [packages for packages in told if "skest" in packages]


@pytest.fixture
def short_fits(page, monkeypatch):
    """Pages show what to write, not what is learned: two epochs, and no folds."""
    if page in ("README.md", "docs/conformance.md"):
        return  # what they show has to be learned

    def shortened(fit):
        @functools.wraps(fit)
        def fit_shortly(self, X, y, *arguments, **keywords):
            params = {"max_iter": 2}
            if self.early_stopping == "auto" and "X_val" not in keywords:
                params["early_stopping"] = False
            former = {name: getattr(self, name) for name in params}
            try:
                return fit(self.set_params(**params), X, y, *arguments, **keywords)
            finally:
                self.set_params(**former)

        return fit_shortly

    for name in skest.__all__:
        estimator = getattr(skest, name)
        if hasattr(estimator, "fit"):
            monkeypatch.setattr(estimator, "fit", shortened(estimator.fit))


@pytest.mark.parametrize("page", PAGES)
def test_python_blocks_run(page, short_fits, capsys):
    namespace = {}
    for block in BLOCK.findall(TEXTS[page]):
        exec(compile(block, page, "exec"), namespace)
    if page == "README.md":
        (shown,) = re.findall(r"```text\n(.*?)```", TEXTS[page], re.DOTALL)
        assert numbers(capsys.readouterr().out) == pytest.approx(
            numbers(shown), abs=0.1
        )
    if "search" in namespace:
        assert 0 < namespace["search"].best_score_ <= 1
    if "boosting" in namespace:
        names = namespace["vectors"].get_feature_names_out()
        assert "shop_embedding_0" in names
