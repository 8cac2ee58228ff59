# SPDX-License-Identifier: Apache-2.0
"""
From a table to probabilities
=============================

Customers with numbers, strings and gaps go into `DNNLinearCombinedClassifier` as they are.
What it did in each epoch and how well its probabilities fit are a plot each.
"""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from sklearn.calibration import CalibrationDisplay
from sklearn.model_selection import train_test_split

from skest import DNNLinearCombinedClassifier

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
# The loss of training falls with every epoch; the score of the rows that were held out says
# when to stop.
figure, (losses, scores) = plt.subplots(1, 2, figsize=(9, 3.5))
epochs = np.arange(1, len(model.loss_curve_) + 1)
losses.plot(epochs, model.loss_curve_)
losses.set(xlabel="epoch", ylabel="training loss")
scores.plot(epochs, model.validation_scores_)
best = int(np.argmax(model.validation_scores_)) + 1
scores.axvline(best, linestyle=":", color="0.4", label=f"best: epoch {best}")
scores.set(xlabel="epoch", ylabel="score of held-out rows")
scores.legend()
figure.tight_layout()
plt.show()

# %%
# Of the customers to whom it gives 30 %, about 30 % leave.
figure, ax = plt.subplots(figsize=(5, 4))
CalibrationDisplay.from_estimator(
    model, X_test, y_test, n_bins=8, pos_label="left", ax=ax
)
figure.tight_layout()
plt.show()
