# SPDX-License-Identifier: Apache-2.0
"""What sampling the softmax saves per step, and what it costs in accuracy.

Run it with ``python -m benchmarks.sampled_softmax``. Beside `SampledSoftmaxHead` stands
`MultiClassHead` with a linear layer and dense gradients. All take their steps in turn, so
that other work on the machine slows down all.
"""

import itertools
import statistics
import time
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from skest.heads import Head, MultiClassHead, SampledSoftmaxHead
from skest.optimizers import make_optimizer

BATCH, INPUTS, HIDDEN = 512, 32, 64
N_CLASSES, N_STEPS, NOISE = 10_000, 1_000, 0.6


class Model:
    """A network with one hidden layer, the same initial values for every head."""

    def __init__(self, head: Head) -> None:
        self.head = head
        generator = torch.Generator().manual_seed(0)
        first, last = (
            nn.Linear(INPUTS, HIDDEN),
            nn.Linear(HIDDEN, head.logits_dimension),
        )
        for layer in (first, last):
            nn.init.xavier_uniform_(layer.weight, generator=generator)
            nn.init.zeros_(layer.bias)
        table = head.output_layer(HIDDEN, initialize=False)
        if table is not None:
            table.weight.data.copy_(last.weight)
            table.bias.data.zero_()
            table.generator = generator
        self.network = nn.Sequential(first, nn.ReLU(), table or last)
        self.optimizer = make_optimizer("adagrad", self.network.parameters(), 0.1)

    def step(self, x: Tensor, y: Tensor) -> float:
        """Take a step and return its seconds."""
        start = time.perf_counter()
        self.optimizer.zero_grad()
        self.head.compute_loss(y, self.network(x)).backward()
        self.optimizer.step()
        return time.perf_counter() - start

    def evaluate(self, x: Tensor, y: Tensor) -> dict[str, float]:
        """Return the metrics of the logits of all classes."""
        head = SampledSoftmaxHead(self.head.logits_dimension, num_sampled=1)
        metrics = head.metrics()
        self.network.eval()
        with torch.no_grad():
            for rows, labels in zip(x.split(256), y.split(256), strict=True):
                head.update_metrics(metrics, labels, self.network(rows))
        return {name: metric.compute() for name, metric in metrics.items()}


def step_milliseconds(n_classes: int, num_sampled: int) -> tuple[float, float]:
    """Return the median times of a sampled and of a full step."""
    rng = np.random.default_rng(0)
    models = [
        Model(SampledSoftmaxHead(n_classes, num_sampled)),
        Model(MultiClassHead(n_classes)),
    ]
    times: list[list[float]] = [[], []]
    for _ in range(6):
        x = torch.from_numpy(rng.normal(size=(BATCH, INPUTS)).astype(np.float32))
        y = torch.from_numpy(rng.integers(0, n_classes, size=(BATCH, 1)))
        for model, taken in zip(models, times, strict=True):
            model.step(x, y)  # not timed: the other model has emptied the caches
            taken += [model.step(x, y) for _ in range(4)]
    sampled, full = (1e3 * statistics.median(taken[4:]) for taken in times)
    return sampled, full


def zipf_problem(rng: np.random.Generator) -> Any:
    """Return class frequencies and an endless iterator of batches.

    Class k occurs in proportion to 1 / (k + 2); its rows lie around a point of its own.
    """
    shares = 1 / np.arange(2, N_CLASSES + 2)
    shares /= shares.sum()
    centers = rng.normal(size=(N_CLASSES, INPUTS)).astype(np.float32)

    def batches() -> Any:
        while True:
            y = rng.choice(N_CLASSES, size=BATCH, p=shares)
            noise = rng.normal(size=(BATCH, INPUTS)).astype(np.float32)
            x = centers[y] + np.float32(NOISE) * noise
            yield torch.from_numpy(x), torch.from_numpy(y[:, None])

    return shares, batches()


def print_accuracy() -> None:
    """Train all on the same batches and print how well they do on other rows."""
    rng = np.random.default_rng(0)
    shares, batches = zipf_problem(rng)
    held_out = [
        torch.cat(part) for part in zip(*itertools.islice(batches, 20), strict=True)
    ]
    models = {"full": Model(MultiClassHead(N_CLASSES))}
    for num_sampled in (20, 100, 500):
        for name, of in (("log_uniform", None), ("uniform", None), ("given", shares)):
            head = SampledSoftmaxHead(
                N_CLASSES, num_sampled, class_distribution=name if of is None else of
            )
            models[f"{num_sampled} {name}"] = Model(head)
    seconds = dict.fromkeys(models, 0.0)
    for x, y in itertools.islice(batches, N_STEPS):
        for name in rng.permutation(list(models)):
            seconds[name] += models[name].step(x, y)
    print(
        f"\n{N_STEPS} steps, {N_CLASSES:,} classes of Zipf's distribution, batch {BATCH}\n"
        f"{'softmax':<18}{'seconds':>10}{'accuracy':>10}{'in top 5':>10}{'loss':>8}"
    )
    for name, model in models.items():
        result = model.evaluate(*held_out)
        print(
            f"{name:<18}{seconds[name]:>10.1f}{result['accuracy']:>10.3f}"
            f"{result['accuracy/top_5']:>10.3f}{result['average_loss']:>8.3f}"
        )


def main() -> None:
    """Print both tables."""
    torch.set_num_threads(1)
    print(f"One step, batch {BATCH}, hidden {HIDDEN}, 100 draws, one thread; ms")
    print(f"{'classes':>10}{'sampled':>10}{'full':>10}{'ratio':>8}")
    for n_classes in (1_000, 10_000, 100_000):
        sampled, full = step_milliseconds(n_classes, 100)
        print(f"{n_classes:>10,}{sampled:>10.2f}{full:>10.2f}{full / sampled:>8.1f}")
    print_accuracy()


if __name__ == "__main__":
    main()
