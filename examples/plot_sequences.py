# SPDX-License-Identifier: Apache-2.0
"""
The order of events
===================

What visitors of a shop looked at, one list for each of them. A coupon counts only for those
who find it with a full basket: `RNNClassifier` reads the lists in their order, and
`DNNClassifier` what is in them.
"""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from sklearn.model_selection import train_test_split

from skest import DNNClassifier, RNNClassifier

rng = np.random.default_rng(0)
pages = ["search", "product", "basket", "coupon"]
visits = [rng.choice(pages, rng.integers(2, 8)).tolist() for _ in range(3000)]


def coupon_behind_basket(visit: list[str]) -> bool:
    return "basket" in visit and "coupon" in visit[visit.index("basket") :]


chance = np.where([coupon_behind_basket(visit) for visit in visits], 0.8, 0.1)
X = pd.DataFrame({"visit": visits})
y = np.where(rng.random(len(X)) < chance, "buys", "leaves")
X_train, X_test, y_train, y_test = train_test_split(X, y, random_state=0)

# %%
# A column of lists needs no preparation.
models = {
    "RNNClassifier": RNNClassifier(
        cell_type="gru",
        optimizer="adam",
        learning_rate=0.01,
        max_iter=15,
        random_state=0,
    ),
    "DNNClassifier": DNNClassifier(max_iter=15, random_state=0),
}
for name, model in models.items():
    accuracy = model.fit(X_train, y_train).score(X_test, y_test)
    print(f"{name}: {accuracy:.3f} of the test rows")

# %%
# Two visits of the same pages:
two = [["search", "coupon", "basket"], ["search", "basket", "coupon"]]
figure, ax = plt.subplots(figsize=(7, 3.5))
for i, (name, model) in enumerate(models.items()):
    buys = model.predict_proba(pd.DataFrame({"visit": two}))[:, 0]
    ax.barh(np.arange(2) + 0.35 * i, buys, height=0.35, label=name)
ax.set_yticks(np.arange(2) + 0.175, [", ".join(visit) for visit in two])
ax.set(xlabel="probability to buy", xlim=(0, 1))
for truth in (0.1, 0.8):
    ax.axvline(truth, color="0.5", linestyle=":")
ax.legend(loc="lower right")
figure.tight_layout()
plt.show()
