# SPDX-License-Identifier: Apache-2.0
"""The work of the benchmarks with tf.estimator 2.15, as its documentation writes it.

``arguments.json`` has the name of the work, a function of this file, and its options. The
result is the time that it took, on the wall and of the processor, without a short run
before it, and the peak of this process's memory in MiB.
"""

import json
import os
import tempfile
import time
from pathlib import Path

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

import numpy as np
import tensorflow as tf

tf.get_logger().setLevel("ERROR")
HIDDEN = [128, 64]
CLOCKS = {"wall": time.perf_counter, "processor": time.process_time}
fc = tf.feature_column


def timed(function, calls=1):
    """Return the result of the last call, and the seconds of one."""
    before = {name: clock() for name, clock in CLOCKS.items()}
    for _ in range(calls):
        result = function()
    return result, {n: (c() - before[n]) / calls for n, c in CLOCKS.items()}


def config():
    """Return settings of one thread, without files on the way."""
    session = tf.compat.v1.ConfigProto(
        intra_op_parallelism_threads=1, inter_op_parallelism_threads=1
    )
    return tf.estimator.RunConfig(
        model_dir=tempfile.mkdtemp(dir="."),
        tf_random_seed=0,
        session_config=session,
        save_checkpoints_steps=10**9,
        save_summary_steps=10**9,
        log_step_count_steps=10**9,
    )


def adam():
    """Return the optimizer of the networks."""
    return tf.keras.optimizers.legacy.Adam(1e-3)


def input_fn(features, labels=None, batch_size=8192, n_epochs=1):
    """Return an input function, shuffled for training."""
    return tf.compat.v1.estimator.inputs.numpy_input_fn(
        features,
        labels,
        batch_size=batch_size,
        num_epochs=n_epochs,
        shuffle=labels is not None,
        queue_capacity=max(1000, 4 * batch_size),
    )


def train(make, *data, steps=None):
    """Return a new model after training."""
    return make(config()).train(input_fn(*data), steps=steps)


def probabilities(model, features):
    """Return those of the second class."""
    rows = model.predict(
        input_fn(features), "probabilities", yield_single_examples=False
    )
    return np.concatenate([batch["probabilities"][:, 1] for batch in rows])


def timed_train(make, features, labels, batch_size, n_epochs):
    """Return the times of a training, after a short one."""
    arguments = (make, features, labels, batch_size)
    train(*arguments, 1, steps=2)
    return timed(lambda: train(*arguments, n_epochs))[1]


def of_numbers(config):
    """Return the network of a column "x" of several numbers."""
    column = fc.numeric_column("x", shape=np.load("X.npy", mmap_mode="r").shape[1:])
    return tf.estimator.DNNClassifier(HIDDEN, [column], optimizer=adam(), config=config)


def dense(batch_size, n_epochs):
    """Train a network on numbers."""
    features = {"x": np.load("X.npy")}
    return timed_train(of_numbers, features, np.load("y.npy"), batch_size, n_epochs)


def wide_deep(encoding, levels, batch_size, n_epochs):
    """Train wide & deep."""
    features = {name: np.load(f"{name}.npy") for name in encoding["numbers"]}
    statistics = {name: (x.mean(), x.std()) for name, x in features.items()}
    numbers = []
    for name, (mean, deviation) in statistics.items():

        def scaled(x, mean=mean, deviation=deviation):
            return (x - mean) / deviation

        numbers.append(fc.numeric_column(name, normalizer_fn=scaled))
    for name in encoding["strings"]:
        names = np.array(levels[name], dtype=object)
        features[name] = names[np.load(f"{name}.npy")]
    categories, embedded = [], []
    for name in encoding["strings"]:
        column = fc.categorical_column_with_vocabulary_list(name, levels[name])
        width = min(16, round(6 * len(levels[name]) ** 0.25))
        categories.append(column)
        embedded.append(fc.embedding_column(column, width))
    cross = fc.crossed_column(encoding["crossed"], encoding["n_buckets"])

    def make(config):
        return tf.estimator.DNNLinearCombinedClassifier(
            linear_feature_columns=[*numbers, *categories, cross],
            linear_optimizer=tf.keras.optimizers.legacy.Adagrad(0.05),
            dnn_feature_columns=[*numbers, *embedded],
            dnn_optimizer=tf.keras.optimizers.legacy.Adagrad(0.05),
            dnn_hidden_units=HIDDEN,
            config=config,
        )

    return timed_train(make, features, np.load("y.npy"), batch_size, n_epochs)


def linear(names, n_buckets, batch_size, n_epochs):
    """Train a linear model with FTRL."""
    features = {name: np.load(f"{name}.npy") for name in names}
    columns = [fc.categorical_column_with_identity(name, n_buckets) for name in names]

    def make(config):
        return tf.estimator.LinearClassifier(columns, optimizer="Ftrl", config=config)

    return timed_train(make, features, np.load("y.npy"), batch_size, n_epochs)


def one_hot(levels, numbers, target, epochs, batch_size):
    """Train until the held-out log loss is at most `target`."""
    train_rows, test_rows = ({}, {})
    for rows, part in ((train_rows, "train"), (test_rows, "test")):
        for name in numbers:
            rows[name] = np.load(f"{name}_{part}.npy")
        for name, values in levels.items():
            codes = np.load(f"{name}_{part}.npy")
            rows[name] = np.array(values, dtype=object)[codes]
    columns = []
    for name in numbers:
        mean, deviation = train_rows[name].mean(), train_rows[name].std()

        def scaled(x, mean=mean, deviation=deviation):
            return (tf.cast(x, tf.float32) - mean) / deviation

        columns.append(fc.numeric_column(name, normalizer_fn=scaled))
    for name, values in levels.items():
        strings = fc.categorical_column_with_vocabulary_list(name, values)
        columns.append(fc.indicator_column(strings))

    def make(config):
        return tf.estimator.DNNClassifier(
            HIDDEN, columns, optimizer=adam(), config=config
        )

    y, y_test = np.load("y_train.npy"), np.load("y_test.npy")
    train(make, train_rows, y, batch_size, 1, steps=2)
    losses = []
    for n_epochs in range(epochs[0], epochs[1] + 1):
        arguments = (make, train_rows, y, batch_size, n_epochs)
        model, spent = timed(lambda arguments=arguments: train(*arguments))
        p = probabilities(model, test_rows).clip(1e-7, 1 - 1e-7)
        losses.append(-np.mean(np.where(y_test == 1, np.log(p), np.log(1 - p))))
        if losses[-1] <= target:
            break
    return {**spent, "n_epochs": n_epochs, "loss": float(min(losses))}


def predict(n_rows, calls):
    """Predict the same rows several times."""
    X = np.load("X.npy")
    model = train(of_numbers, {"x": X}, np.load("y.npy"), 128, 1)
    rows = {"x": np.resize(X, (n_rows, X.shape[1]))}
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
