# SPDX-License-Identifier: Apache-2.0
"""How fast a SavedModel of tf.estimator 2.15 answers by its signature of raw tensors."""

import json
import os
import statistics
import tempfile
import time
from pathlib import Path

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

import tensorflow as tf

tf.get_logger().setLevel("ERROR")
fc = tf.feature_column


def milliseconds(call, repeats):
    """Return the least time of the processor, and the median time."""
    busy, whole = [], []
    for _ in range(repeats):
        start = time.process_time(), time.perf_counter()
        call()
        busy.append(time.process_time() - start[0])
        whole.append(time.perf_counter() - start[1])
    return min(busy) * 1e3, statistics.median(whole) * 1e3


def trained(given):
    """Return an estimator after a step, and the raw tensors that it takes."""
    columns, features = [], {}
    for name, cells in given["rows"].items():
        if name in given["levels"]:
            words = fc.categorical_column_with_vocabulary_list(
                name, given["levels"][name]
            )
            columns.append(fc.embedding_column(words, given["dimensions"][name]))
            features[name] = tf.constant([[cell] for cell in cells])
        else:
            columns.append(
                fc.numeric_column(name, normalizer_fn=lambda x: (x - 0.1) / 2)
            )
            features[name] = tf.constant([[cell] for cell in cells], tf.float32)
    session = tf.compat.v1.ConfigProto(
        intra_op_parallelism_threads=1, inter_op_parallelism_threads=1
    )
    config = tf.estimator.RunConfig(
        model_dir=tempfile.mkdtemp(dir="."), session_config=session
    )
    model = tf.estimator.DNNClassifier(given["hidden"], columns, config=config)
    labels = [0] * len(given["rows"]["city"])
    arrays = {name: tensor.numpy() for name, tensor in features.items()}
    model.train(lambda: (arrays, labels), steps=1)
    return model, features


def main():
    """Train, export, and time the signature "predict"."""
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    given = json.loads(Path("arguments.json").read_text())
    model, features = trained(given)
    shapes = {
        name: tf.TensorSpec((None, 1), tensor.dtype, name)
        for name, tensor in features.items()
    }

    def receiver():
        raw = {
            name: tf.compat.v1.placeholder(spec.dtype, spec.shape, name)
            for name, spec in shapes.items()
        }
        return tf.estimator.export.ServingInputReceiver(raw, raw)

    start = time.perf_counter()
    path = model.export_saved_model("exported", receiver)
    exported = (time.perf_counter() - start) * 1e3
    signature = tf.saved_model.load(path.decode()).signatures["predict"]
    signature(**features)
    busy, median = milliseconds(lambda: signature(**features), given["repeats"])
    result = {"busy": busy, "median": median, "export": exported}
    Path("result.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main()
