# SPDX-License-Identifier: Apache-2.0
"""The work of the benchmarks with Keras 3 on TensorFlow, as its documentation writes it.

``arguments.json`` has the name of the work, a function of this file, and its options. The
result is the time that it took, on the wall and of the processor, without a short run
before it, and the peak of this process's memory in MiB.
"""

import json
import os
import time
from pathlib import Path

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
os.environ["KERAS_BACKEND"] = "tensorflow"

import keras
import numpy as np
import tensorflow as tf
from keras import layers

CLOCKS = {"wall": time.perf_counter, "processor": time.process_time}


def timed(function, calls=1):
    """Return the result of the last call, and the seconds of one."""
    before = {name: clock() for name, clock in CLOCKS.items()}
    for _ in range(calls):
        result = function()
    return result, {n: (c() - before[n]) / calls for n, c in CLOCKS.items()}


def hidden(inputs):
    """Return the units of the last hidden layer."""
    return layers.Dense(64, "relu")(layers.Dense(128, "relu")(inputs))


def fit(model, optimizer, data, n_epochs, **options):
    """Return the model after training."""
    loss = keras.losses.BinaryCrossentropy(from_logits=True)
    model.compile(optimizer=optimizer, loss=loss)
    model.fit(*data, epochs=n_epochs, verbose=0, **options)
    return model


def fit_network(X, y, batch_size, n_epochs):
    """Return a network after training on numbers."""
    inputs = keras.Input(X.shape[1:])
    model = keras.Model(inputs, layers.Dense(1)(hidden(inputs)))
    adam = keras.optimizers.Adam(1e-3)
    return fit(model, adam, (X, y), n_epochs, batch_size=batch_size)


def probabilities(model, X):
    """Return those of the second class."""
    logits = model.predict(X, batch_size=8192, verbose=0)[:, 0]
    return 1 / (1 + np.exp(-logits))


def dense(batch_size, n_epochs):
    """Train a network on numbers."""
    X, y = np.load("X.npy"), np.load("y.npy")
    fit_network(X[:256], y[:256], 128, 1)
    return timed(lambda: fit_network(X, y, batch_size, n_epochs))[1]


def wide_deep(encoding, levels, batch_size, n_epochs):
    """Train wide & deep on columns that layers have encoded before."""
    strings = {}
    for name in encoding["strings"]:
        names = np.array(levels[name], dtype=object)
        strings[name] = names[np.load(f"{name}.npy")].astype(str)
    columns = [np.load(f"{name}.npy") for name in encoding["numbers"]]
    numbers, y = np.stack(columns, 1).astype(np.float32), np.load("y.npy")

    def train(n_rows, n_epochs):
        scale = layers.Normalization()
        scale.adapt(numbers[:n_rows])
        data = {"numbers": np.asarray(scale(numbers[:n_rows]))}
        for name, values in strings.items():
            lookup = layers.StringLookup(vocabulary=levels[name])
            data[name] = np.asarray(lookup(values[:n_rows]))
        cross = layers.HashedCrossing(encoding["n_buckets"])
        crossed = tuple(strings[name][:n_rows] for name in encoding["crossed"])
        data["cross"] = np.asarray(cross(crossed))
        model = wide_deep_model(len(columns), levels, strings, encoding["n_buckets"])
        adagrad = keras.optimizers.Adagrad(0.05)
        return fit(model, adagrad, (data, y[:n_rows]), n_epochs, batch_size=batch_size)

    train(2 * batch_size, 1)
    return timed(lambda: train(len(y), n_epochs))[1]


def wide_deep_model(n_numbers, levels, strings, n_buckets):
    """Return the model of encoded columns."""
    numbers = keras.Input((n_numbers,), name="numbers")
    inputs, deep, wide = {"numbers": numbers}, [numbers], [layers.Dense(1)(numbers)]
    for name in strings:
        ids = inputs[name] = keras.Input((), name=name, dtype="int64")
        n_levels = len(levels[name])
        width = min(16, round(6 * n_levels**0.25))
        deep.append(layers.Embedding(n_levels + 1, width)(ids))
        wide.append(layers.Embedding(n_levels + 1, 1)(ids))
    ids = inputs["cross"] = keras.Input((), name="cross", dtype="int64")
    wide.append(layers.Embedding(n_buckets, 1)(ids))
    wide.append(layers.Dense(1)(hidden(layers.Concatenate()(deep))))
    return keras.Model(inputs, layers.Add()(wide))


def one_hot(levels, numbers, target, epochs, batch_size):
    """Train until the held-out log loss is at most `target`."""

    def encoded(part, statistics):
        columns = [np.load(f"{name}_{part}.npy") for name in numbers]
        blocks = [(x - m) / s for x, (m, s) in zip(columns, statistics, strict=True)]
        for name, values in levels.items():
            codes = np.load(f"{name}_{part}.npy")
            strings = np.array(values, dtype=object)[codes].astype(str)
            lookup = layers.StringLookup(vocabulary=values, output_mode="one_hot")
            blocks.append(np.asarray(lookup(strings)))
        blocks = [x.reshape(len(x), -1) for x in blocks]
        return np.concatenate(blocks, axis=1).astype(np.float32)

    columns = [np.load(f"{name}_train.npy") for name in numbers]
    statistics = [(x.mean(), x.std()) for x in columns]
    y, y_test = np.load("y_train.npy"), np.load("y_test.npy")
    X_test = encoded("test", statistics)

    def train(n_epochs):
        keras.utils.set_random_seed(0)
        return fit_network(encoded("train", statistics), y, batch_size, n_epochs)

    train(1)
    losses = []
    for n_epochs in range(epochs[0], epochs[1] + 1):
        model, spent = timed(lambda n_epochs=n_epochs: train(n_epochs))
        p = probabilities(model, X_test).clip(1e-7, 1 - 1e-7)
        losses.append(-np.mean(np.where(y_test == 1, np.log(p), np.log(1 - p))))
        if losses[-1] <= target:
            break
    return {**spent, "n_epochs": n_epochs, "loss": float(min(losses))}


def predict(n_rows, calls):
    """Predict the same rows several times."""
    X = np.load("X.npy")
    model = fit_network(X, np.load("y.npy"), 128, 1)
    rows = np.resize(X, (n_rows, X.shape[1]))
    probabilities(model, rows)
    return timed(lambda: probabilities(model, rows), calls)[1]


def peak():
    """Return the peak of this process's memory in MiB; None if unknown."""
    status = Path("/proc/self/status")
    if not status.exists():
        return None
    lines = status.read_text().splitlines()
    return next(int(x.split()[1]) for x in lines if x.startswith("VmHWM")) / 1024


def main():
    """Do the work and write what it took."""
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    given = json.loads(Path("arguments.json").read_text())
    result = globals()[given.pop("work")](**given)
    Path("result.json").write_text(json.dumps({**result, "peak": peak()}))


if __name__ == "__main__":
    main()
