# SPDX-License-Identifier: Apache-2.0
"""
Several targets of one network
==============================

For how much is a flat let, and how many ask for it? `MultiHeadEstimator` learns a number, a
count and a class together: its heads share the layers below them.
"""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from sklearn.model_selection import train_test_split

from skest import MultiHeadEstimator

rng = np.random.default_rng(0)
n = 3000
flats = pd.DataFrame(
    {
        "size": rng.uniform(25, 130, n).round(),
        "floor": rng.integers(0, 9, n),
        "quarter": rng.choice(["harbour", "old town", "station", "hills"], n),
        "balcony": rng.random(n) < 0.5,
    }
)
charm = flats["quarter"].map({"harbour": 2, "old town": 3, "station": 0, "hills": 1})
rent = flats["size"] * (9 + charm) + 15 * flats["floor"] + 40 * flats["balcony"]
targets = pd.DataFrame(
    {
        "rent": rent + rng.normal(scale=60, size=n),
        "calls": rng.poisson(np.exp(0.6 * charm + 0.5 * flats["balcony"])),
        "gone in a week": rng.random(n) < 1 / (1 + np.exp(2 - charm)),
    }
)
X_train, X_test, y_train, y_test = train_test_split(flats, targets, random_state=0)

# %%
# The heads are those of the columns of ``y``.
model = MultiHeadEstimator(
    heads={
        "rent": "regression",
        "calls": "poisson",
        "gone in a week": "classification",
    },
    max_iter=20,
    random_state=0,
).fit(X_train, y_train)
predicted = model.predict(X_test)
gone = model.predict_proba(X_test)[2][:, 1]

# %%
figure, axes = plt.subplots(1, 3, figsize=(10, 3.5))
axes[0].scatter(predicted["rent"], y_test["rent"], s=4)
axes[0].axline((0, 0), slope=1, color="0.5", linestyle=":")
axes[0].set(xlabel="predicted rent", ylabel="rent", xlim=(200, 1800))
means_of = {"calls": predicted["calls"], "gone in a week": gone}
for ax, (name, values) in zip(axes[1:], means_of.items(), strict=True):
    eighths = pd.DataFrame({"predicted": values, "seen": y_test[name].to_numpy()})
    means = eighths.groupby(pd.qcut(values, 8), observed=True).mean()
    ax.plot(means["predicted"], means["seen"], "o-")
    ax.axline((0, 0), slope=1, color="0.5", linestyle=":")
    ax.set(xlabel=f"predicted, {name}", ylabel="mean of an eighth of the rows")
figure.tight_layout()
plt.show()
