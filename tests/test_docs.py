# SPDX-License-Identifier: Apache-2.0
"""The code in README.md and docs/ runs, block after block."""

import functools
import re
from itertools import takewhile
from pathlib import Path

import pytest

import skest

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
STARTS_PROCESSES = re.compile(r"AsyncParameterServer\(|SharedMemory\(|n_jobs=2")


def blocks_of(page):
    text = page.read_text(encoding="utf-8")
    return re.findall(r"```python\n(.*?)```", text, re.DOTALL)


def starts_processes(page):
    return any(map(STARTS_PROCESSES.search, blocks_of(page)))


@pytest.mark.skipif(not PAGES[0].exists(), reason="tests run outside a checkout")
def test_what_is_told_to_install_can_be_found():
    """Packages by their names: skest itself is only in the checkout."""
    told = []
    for file in [*PAGES, *(ROOT / "skest").rglob("*.py")]:
        text = file.read_text(encoding="utf-8")
        told += re.findall(r"pip install ([^`\n\"#]+)", text)
    assert "onnx onnxruntime" in told
    assert not [packages for packages in told if "skest" in packages]


@pytest.fixture
def short_fits(page, monkeypatch):
    """Pages show what to write, not what is learned: two epochs, and no folds."""
    if page.name == "conformance.md":
        return  # the checks ask for what is learned in the epochs given

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


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
@pytest.mark.skipif(not PAGES[0].exists(), reason="tests run outside a checkout")
def test_python_blocks_run(page, short_fits):
    """Up to the first block that starts processes, which takes seconds."""
    run_blocks(
        takewhile(lambda b: not STARTS_PROCESSES.search(b), blocks_of(page)), page
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "page", [*filter(starts_processes, PAGES)], ids=lambda page: page.name
)
def test_python_blocks_that_start_processes_run(page, short_fits):
    run_blocks(blocks_of(page), page)


def run_blocks(blocks, page):
    namespace = {}
    for block in blocks:
        exec(compile(block, str(page), "exec"), namespace)
    if "search" in namespace:
        assert 0 < namespace["search"].best_score_ <= 1
    if "boosting" in namespace:
        names = namespace["vectors"].get_feature_names_out()
        assert "shop_embedding_0" in names
