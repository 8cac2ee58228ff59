# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest

import skest
from skest.exceptions import ExportError

CITY = np.array(["Rome", "Oslo"] * 10, object)
CLASSES = np.array(["a\ud800", "b"] * 10, object)


@pytest.mark.parametrize(
    ("X", "y"),
    [({"city": CITY}, CLASSES), ({"a\ud800": CITY}, [0, 1] * 10)],
    ids=["class", "column"],
)
def test_names_that_are_no_unicode_are_shown(tmp_path, X, y):
    pytest.importorskip("onnx")
    model = skest.LinearClassifier(max_iter=1).fit(X, y)
    with pytest.raises(ExportError, match=r"text '.*a\\ud800.*', which is not valid U"):
        model.export(tmp_path)
    assert list(tmp_path.iterdir()) == []
