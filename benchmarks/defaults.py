# SPDX-License-Identifier: Apache-2.0
"""The estimators as they are constructed, on raw Census income.

Run it with ``python -m benchmarks.defaults [FOLDER]``; without a folder that holds the
table, it is taken from ``../shared/data/adult`` or from OpenML.
"""

import sys
import time
from pathlib import Path

from sklearn.metrics import log_loss, roc_auc_score

from skest import DNNClassifier, DNNLinearCombinedClassifier, LinearClassifier

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))

from mixed_tables import load_census


def main() -> None:
    """Print the table."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else None
    table = load_census(folder, offline=False)
    if table is None:
        raise SystemExit("The Census table is not at hand.")
    print("| | accuracy | AUC | log loss | epochs | seconds |")
    print("|---|---|---|---|---|---|")
    for kind in (DNNLinearCombinedClassifier, DNNClassifier, LinearClassifier):
        start = time.perf_counter()
        model = kind(random_state=0).fit(table.X_train, table.y_train)
        seconds = time.perf_counter() - start
        probability = model.predict_proba(table.X_test)
        accuracy = model.score(table.X_test, table.y_test)
        auc = roc_auc_score(table.y_test, probability[:, 1])
        loss = log_loss(table.y_test, probability)
        print(
            f"| `{kind.__name__}()` | {accuracy:.4f} | {auc:.4f} | {loss:.4f} "
            f"| {model.n_iter_} | {seconds:.1f} |"
        )


if __name__ == "__main__":
    main()
