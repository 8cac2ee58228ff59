# SPDX-License-Identifier: Apache-2.0
"""
From a table to probabilities
=============================

Customers with numbers, strings and gaps go into `DNNLinearCombinedClassifier` as they are.
What it did in each epoch, what a column does, and how well its probabilities fit are a plot
each.
"""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from sklearn.calibration import CalibrationDisplay
from sklearn.model_selection import train_test_split

from skest import DNNLinearCombinedClassifier
from skest.displays import ColumnEffectDisplay, TrainingCurveDisplay

rng = np.random.default_rng(0)
n = 3000
customers = pd.DataFrame(
    {
        "months": rng.integers(1, 72, n),
        "charge": rng.normal(65, 20, n).round(2),
        "contract": rng.choice(["monthly", "one year", "two years"], n),
        "payment": rng.choice(["card", "bank", "check"], n),
    }
)
customers.loc[rng.random(n) < 0.1, "payment"] = None
charge = (customers["charge"] - 65) / 20
score = 3 * np.sin(3 * charge) - customers["months"] / 24 + 1
score += 3 * (customers["contract"].eq("monthly") & customers["payment"].eq("check"))
left = np.where(rng.random(n) < 1 / (1 + np.exp(-score)), "left", "stayed")
X_train, X_test, y_train, y_test = train_test_split(
    customers, left, test_size=0.3, random_state=0
)

# %%
model = DNNLinearCombinedClassifier(
    dnn_optimizer="adam",
    dnn_learning_rate=0.001,
    early_stopping=True,
    batch_size=64,
    max_iter=40,
    random_state=0,
)
model.fit(X_train, y_train)
print(f"accuracy {model.score(X_test, y_test):.3f}")
pd.Series(model.predict_proba(X_test[:1])[0], model.classes_)

# %%
# The loss of training falls with every epoch; that of the rows that were held out says when
# to stop.
TrainingCurveDisplay.from_estimator(model)
plt.show()

# %%
# What the charge does, all else as it is.
ColumnEffectDisplay.from_estimator(model, X_test, "charge", target="left")
plt.show()

# %%
# Of the customers to whom it gives 30 %, about 30 % leave.
figure, ax = plt.subplots(figsize=(5, 4))
CalibrationDisplay.from_estimator(
    model, X_test, y_test, n_bins=8, pos_label="left", ax=ax
)
figure.tight_layout()
plt.show()
