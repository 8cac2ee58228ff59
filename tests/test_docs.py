# SPDX-License-Identifier: Apache-2.0
"""The code in README.md and docs/ runs, block after block."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.skipif(not PAGES[0].exists(), reason="tests run outside a checkout")
def test_what_is_told_to_install_can_be_found():
    """Packages by their names: skest itself is only in the checkout."""
    told = []
    for file in [*PAGES, *(ROOT / "skest").rglob("*.py")]:
        text = file.read_text(encoding="utf-8")
        told += re.findall(r"pip install ([^`\n\"#]+)", text)
    assert "onnx onnxruntime" in told
    assert not [packages for packages in told if "skest" in packages]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
@pytest.mark.skipif(not PAGES[0].exists(), reason="tests run outside a checkout")
def test_python_blocks_run(page):
    text = page.read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert blocks
    namespace = {}
    for block in blocks:
        exec(compile(block, str(page), "exec"), namespace)
    if "search" in namespace:
        assert 0 < namespace["search"].best_score_ <= 1
    if "boosting" in namespace:
        names = namespace["vectors"].get_feature_names_out()
        assert "shop_embedding_0" in names
