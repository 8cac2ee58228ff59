# SPDX-License-Identifier: Apache-2.0
"""
Which columns count
===================

The functions of `sklearn.inspection` take the raw table, strings, dates and gaps included:
how much worse predictions become where a column is shuffled, and what two columns do.
"""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from sklearn.inspection import PartialDependenceDisplay, permutation_importance
from sklearn.model_selection import train_test_split

from skest import DNNRegressor

rng = np.random.default_rng(0)
n = 3000
trips = pd.DataFrame(
    {
        "distance": rng.exponential(4, n).round(1),
        "vehicle": rng.choice(["tram", "bus", "taxi"], n),
        "start": pd.Timestamp("2026-01-01")
        + pd.to_timedelta(rng.integers(0, 90 * 24 * 60, n), "min"),
        "driver": rng.choice([f"driver {i}" for i in range(30)], n),
    }
)
pace = trips["vehicle"].map({"tram": 2.2, "bus": 3.2, "taxi": 2.5})
hour = trips["start"].dt.hour
rush = trips["vehicle"].ne("tram") & (hour.between(7, 9) | hour.between(16, 18))
minutes = 4 + trips["distance"] * pace * (1 + 0.6 * rush) + rng.normal(scale=2, size=n)
trips.loc[rng.random(n) < 0.05, "vehicle"] = None
X_train, X_test, y_train, y_test = train_test_split(trips, minutes, random_state=0)
model = DNNRegressor(max_iter=20, random_state=0).fit(X_train, y_train)
print(f"R² of the test rows: {model.score(X_test, y_test):.3f}")

# %%
# The driver says nothing, and the network has found that out.
found = permutation_importance(model, X_test, y_test, n_repeats=5, random_state=0)
order = found.importances_mean.argsort()
figure, axes = plt.subplots(1, 2, figsize=(10, 3.5))
axes[0].barh(
    trips.columns[order],
    found.importances_mean[order],
    xerr=found.importances_std[order],
)
axes[0].set(xlabel="loss of R²")
PartialDependenceDisplay.from_estimator(model, X_test, ["distance"], ax=axes[1])
figure.tight_layout()
plt.show()
