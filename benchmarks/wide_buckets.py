# SPDX-License-Identifier: Apache-2.0
"""What a training step of a wide model costs as its number of hash buckets grows.

Run it with ``python -m benchmarks.wide_buckets``. A linear model of one hash bucket column
is trained by `skest.Estimator` on ids that follow Zipf's law, and so is a DNN of one
embedding column. Both update the rows that a batch touches, and no others.
"""

import statistics
import time
from functools import partial
from typing import Any

import numpy as np
import torch

import skest
from skest import feature_columns as fc
from skest.canned.dnn import dnn_model_fn
from skest.canned.linear import linear_model_fn
from skest.heads import BinaryClassHead
from skest.hooks import Hook

BATCH, STEPS, WARM_UP = 512, 200, 20
BUCKETS = (10_000, 100_000, 1_000_000, 10_000_000)


class StepTimes(Hook):
    """Notes the seconds of every step."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def before_step(self, run: Any) -> None:
        self._start = time.perf_counter()

    def after_step(self, run: Any, loss: Any) -> None:
        self.seconds.append(time.perf_counter() - self._start)


def model_fns(n_buckets: int) -> dict[str, partial]:
    """Return the two model functions."""
    item = fc.categorical_column_with_hash_bucket("item", n_buckets)
    wide = fc.FeatureColumns([item])
    deep = fc.FeatureColumns([fc.embedding_column(item, 8)])
    head = BinaryClassHead()
    return {
        "linear, ftrl": partial(linear_model_fn, head=head, columns=wide),
        "embedding of 8, adagrad": partial(
            dnn_model_fn, head=head, columns=deep, hidden_units=[16]
        ),
    }


def step_microseconds(model_fn: partial, features: Any, labels: Any) -> float:
    """Return the median time of a step."""
    times = StepTimes()
    config = skest.RunConfig(random_seed=0, log_step_count_steps=None)
    input_fn = skest.inputs.numpy_input_fn(
        features, labels, batch_size=BATCH, num_epochs=1, shuffle=False
    )
    skest.Estimator(model_fn, config=config).train(input_fn, hooks=[times])
    return 1e6 * statistics.median(times.seconds[WARM_UP:])


def main() -> None:
    """Print the table."""
    torch.set_num_threads(1)
    rng = np.random.default_rng(0)
    items = rng.zipf(1.2, BATCH * STEPS) % 10**9
    labels = rng.integers(0, 2, len(items))
    print(
        f"Median of {STEPS - WARM_UP} steps of {BATCH} rows, one thread; microseconds"
    )
    print(f"{'buckets':>12}{'linear, ftrl':>26}{'embedding of 8, adagrad':>26}")
    first: dict[str, float] = {}
    for n_buckets in BUCKETS:
        line = f"{n_buckets:>12,}"
        for name, model_fn in model_fns(n_buckets).items():
            step = step_microseconds(model_fn, {"item": items}, labels)
            line += f"{step:>17.0f} ({step / first.setdefault(name, step):4.2f}x)"
        print(line, flush=True)


if __name__ == "__main__":
    main()
