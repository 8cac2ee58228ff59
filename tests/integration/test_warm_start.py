# SPDX-License-Identifier: Apache-2.0
"""A real table grows new categories: a warm start is ahead of a cold one."""

from pathlib import Path

import pytest
from sklearn.metrics import roc_auc_score

from skest import DNNLinearCombinedClassifier

CENSUS = Path(__file__).resolve().parents[3] / "shared" / "data" / "adult"
EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.mark.slow
@pytest.mark.skipif(not CENSUS.is_dir(), reason=f"the Census table is not at {CENSUS}")
def test_census(monkeypatch):
    monkeypatch.syspath_prepend(EXAMPLES)
    from mixed_tables import load_census

    table = load_census(CENSUS, offline=True)
    X, y = table.X_train, table.y_train
    is_old = (X["native_country"] == "United-States") & ~X["occupation"].isin(
        ["Tech-support", "Sales", "Protective-serv"]
    )
    old = DNNLinearCombinedClassifier(max_iter=5, random_state=0).fit(
        X[is_old], y[is_old]
    )

    def auc_after(n_steps, source):
        new = DNNLinearCombinedClassifier(
            max_steps=n_steps,
            warm_start_from=source,
            early_stopping=False,
            random_state=1,
        ).fit(X, y)
        probability = new.predict_proba(table.X_test)[:, 1]
        return roc_auc_score(table.y_test, probability), new.warm_start_report_

    for n_steps in (5, 20):
        (warm, report), (cold, _) = (auc_after(n_steps, s) for s in (old, None))
        assert warm > 0.895
        assert warm > cold + 0.01
    grown = {(v.n_copied, v.n_new) for v in report.variables if v.n_new}
    # The occupations; an embedding has rows for unknown and missing ones as well.
    assert grown & {(11, 3), (13, 3)}
