# SPDX-License-Identifier: Apache-2.0
"""
What an embedding has learned
=============================

Orders of 60 shops, and whether they were returned. What a network learns about a shop is a
vector of two numbers: shops of a kind come to lie together, though no kind is in the table.
"""

from functools import partial

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch

from skest import DNNClassifier
from skest import feature_columns as fc

rng = np.random.default_rng(0)
shops = np.array([f"shop {i}" for i in range(60)])
kinds = np.array(["food", "toys", "tools"])[np.arange(60) % 3]
effects = {"food": (3, 0), "toys": (-2, 2), "tools": (-2, -2)}

n = 12000
shop = rng.integers(0, 60, n)
weekend = rng.integers(0, 2, n)
base, on_weekends = np.array([effects[kind] for kind in kinds[shop]]).T
returned = rng.random(n) < 1 / (1 + np.exp(-(base + on_weekends * weekend) / 2))
X = pd.DataFrame({"shop": shops[shop], "weekend": weekend})

# %%
# The vocabulary is learned from the table. All shops start near zero, so that those of a
# kind go the same way.
words = fc.categorical_column_with_vocabulary_list("shop")
shop_vectors = fc.embedding_column(
    words, 2, initializer=partial(torch.nn.init.normal_, std=0.01)
)
model = DNNClassifier(
    (16,),
    feature_columns=[shop_vectors, fc.numeric_column("weekend")],
    optimizer="adam",
    learning_rate=0.01,
    max_iter=10,
    random_state=0,
)
model.fit(X, returned)

# %%
# The fitted columns are a transformer, which gives the vectors.
table = pd.DataFrame({"shop": shops, "weekend": 0})
names = model.feature_columns_.get_feature_names_out()
vectors = model.feature_columns_.transform(table)[:, ["shop" in name for name in names]]

figure, ax = plt.subplots(figsize=(6, 5))
for kind, marker in zip(effects, "os^", strict=True):
    of_kind = kinds == kind
    ax.scatter(*vectors[of_kind].T, marker=marker, label=kind)
ax.set(xlabel="first number", ylabel="second number", title="60 shops")
ax.legend()
figure.tight_layout()
plt.show()
