# SPDX-License-Identifier: Apache-2.0
"""The code in README.md runs, block after block."""

import re
from pathlib import Path

import pytest

README = Path(__file__).parent.parent / "README.md"


@pytest.mark.skipif(not README.exists(), reason="tests run outside a checkout")
def test_python_blocks_of_the_readme_run():
    blocks = re.findall(
        r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL
    )
    assert len(blocks) >= 4
    namespace = {}
    for block in blocks:
        exec(compile(block, str(README), "exec"), namespace)
    assert 0 < namespace["search"].best_score_ <= 1
