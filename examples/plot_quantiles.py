# SPDX-License-Identifier: Apache-2.0
"""
A forecast with its range
=========================

``loss="quantile"`` learns a quantile instead of a mean: three regressors give a median and
the range in which eight of ten values fall. The noise grows with the hour, and so does the
range.
"""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from skest import DNNRegressor

rng = np.random.default_rng(0)
hour = rng.uniform(0, 24, 1500)
load = 50 + 20 * np.sin(hour / 24 * 2 * np.pi) + rng.normal(scale=1 + hour / 3)
X = pd.DataFrame({"hour": hour})

# %%
# One estimator for each quantile; ``learning_rate`` and ``max_iter`` keep them quick.
grid = pd.DataFrame({"hour": np.linspace(0, 24, 200)})
curves = {}
for quantile in (0.1, 0.5, 0.9):
    model = DNNRegressor(
        (32, 32),
        loss="quantile",
        quantile=quantile,
        optimizer="adam",
        learning_rate=0.005,
        batch_size=50,
        max_iter=40,
        random_state=0,
    )
    curves[quantile] = model.fit(X, load).predict(grid)

# %%
figure, ax = plt.subplots(figsize=(7, 4))
ax.scatter(hour, load, s=4, color="0.7", label="training rows")
ax.fill_between(grid["hour"], curves[0.1], curves[0.9], alpha=0.3, label="80 %")
ax.plot(grid["hour"], curves[0.5], label="median")
ax.set(xlabel="hour", ylabel="load")
ax.legend(loc="upper right")
figure.tight_layout()
plt.show()

# %%
inside = (load > np.interp(hour, grid["hour"], curves[0.1])) & (
    load < np.interp(hour, grid["hour"], curves[0.9])
)
print(f"{inside.mean():.0%} of the rows are in the range")
