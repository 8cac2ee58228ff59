# SPDX-License-Identifier: Apache-2.0
"""Pictures of fitted estimators, in the style of scikit-learn's Display objects.

Each has ``from_estimator(estimator, ...)``, which draws, and keeps what was drawn:
``ax_``, ``figure_`` and the numbers; ``plot(ax=...)`` draws it again elsewhere. They need
matplotlib (``pip install matplotlib``).

scikit-learn's own displays take skest's estimators and raw tables, too:
`sklearn.calibration.CalibrationDisplay`, `sklearn.metrics.RocCurveDisplay`,
`ConfusionMatrixDisplay` and so on; `sklearn.inspection.permutation_importance` tells how
much each column of a table matters.
"""

from skest.displays.column_effect import ColumnEffectDisplay
from skest.displays.learned import (
    EmbeddingDisplay,
    TrainingCurveDisplay,
    WeightsDisplay,
)

__all__ = [
    "ColumnEffectDisplay",
    "EmbeddingDisplay",
    "TrainingCurveDisplay",
    "WeightsDisplay",
]
