# SPDX-License-Identifier: Apache-2.0
"""The table of `benchmarks.encode` through the feature columns of tf.estimator.

Timed is what the columns do before a model multiplies anything with weights: numbers are
scaled, strings become ids (``_transform_features_v2``, the function behind `DenseFeatures`
and the linear model), all columns in one compiled ``tf.function``.
"""

import ctypes
import json
import os
import time
from pathlib import Path

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

import numpy as np
import tensorflow as tf
from tensorflow.python.feature_column import feature_column_v2 as columns_v2

THREADS = int(os.environ["OMP_NUM_THREADS"])
BATCH = 512


def make_columns(numbers, levels, hashed, crossed, n_buckets):
    """Return the columns of the benchmark."""
    fc = tf.feature_column
    made = []
    for name, (mean, deviation) in numbers.items():

        def scaled(x, mean=mean, deviation=deviation):
            return (x - mean) / deviation

        made.append(fc.numeric_column(name, normalizer_fn=scaled))
    for name, vocabulary in levels.items():
        if name != hashed:
            made.append(fc.categorical_column_with_vocabulary_list(name, vocabulary))
    made.append(fc.categorical_column_with_hash_bucket(hashed, n_buckets))
    made.append(fc.crossed_column(list(crossed), n_buckets))
    return made


def make_transform(columns):
    """Return a function from raw features to those of all columns."""
    manager = columns_v2._StateManagerImpl(tf.keras.layers.Layer(), trainable=True)

    @tf.function(reduce_retracing=True)
    def transform(features):
        made = columns_v2._transform_features_v2(features, columns, manager)
        return {column.name: value for column, value in made.items()}

    return transform


def best_seconds(function, repeats):
    """Return the least processor time of some calls, after one that is not timed."""
    function()
    times = []
    for _ in range(repeats):
        start = time.process_time()
        function()
        times.append(time.process_time() - start)
    return min(times)


def run_batches(tensors, transform):
    """Feed the whole table in batches, as an input_fn does."""
    options = tf.data.Options()
    options.threading.private_threadpool_size = THREADS
    batches = tf.data.Dataset.from_tensor_slices(tensors).batch(BATCH)
    for batch in batches.with_options(options):
        transform(batch)


def memory(function):
    """Return MiB of the result, and the peak beside what was there; None if unknown."""
    if not Path("/proc/self/clear_refs").exists():
        return None, None
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
    before = status("VmRSS")
    result = function()
    peak = status("VmHWM") - before
    size = 0
    for value in result.values():
        sparse = isinstance(value, tf.SparseTensor)
        for part in (value.indices, value.values) if sparse else (value,):
            size += part.numpy().nbytes
    return size / 2**20, peak


def status(field):
    """Return a field of this process's status in MiB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(float(x.split()[1]) for x in lines if x.startswith(field)) / 1024


def main():
    """Read the table, time the columns and write the seconds."""
    tf.config.threading.set_intra_op_parallelism_threads(THREADS)
    tf.config.threading.set_inter_op_parallelism_threads(THREADS)
    given = json.loads(Path("arguments.json").read_text())
    features = {
        name: np.load(f"{name}.npy").astype(np.float32) for name in given["numbers"]
    }
    for name, levels in given["levels"].items():
        features[name] = np.array(levels, dtype=object)[np.load(f"{name}.npy")]
    columns = make_columns(
        given["numbers"],
        given["levels"],
        given["hashed"],
        given["crossed"],
        given["n_buckets"],
    )
    transform = make_transform(columns)

    def as_tensors():
        return {name: tf.constant(values) for name, values in features.items()}

    tensors = as_tensors()
    for n_rows in (BATCH, 2 * BATCH):  # traced for any number of rows
        transform({name: values[:n_rows] for name, values in tensors.items()})
    # First, for TensorFlow does not give back all memory that it has had.
    size, peak = memory(lambda: transform(tensors))
    repeats = given["repeats"]
    seconds = {
        "tensors": best_seconds(lambda: transform(tensors), repeats),
        "arrays": best_seconds(lambda: transform(as_tensors()), repeats),
        "batches": best_seconds(lambda: run_batches(tensors, transform), 1),
    }
    result = {"seconds": seconds, "size": size, "peak": peak, "batch": BATCH}
    Path("result.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main()
