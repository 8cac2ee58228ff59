# SPDX-License-Identifier: Apache-2.0
"""Asynchronous training on a parameter server with tf.estimator 2.15, on one machine.

``arguments.json`` has the numbers of trainers and of parameter servers, and the options of
the work (see ``benchmarks/distributed.py``). The result is the number of examples in a
second of all trainers together, between the steps ``warm`` and ``last`` and when all are at
work, and the peak of the chief's memory in MiB.
"""

import json
import os
import resource
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

ROLE = "SKEST_BENCHMARK_ROLE"
MODEL_DIR = "SKEST_BENCHMARK_DIR"
OWN_STEPS_BEFORE = 5
SECONDS_TO_START = 300


def free_ports(n):
    """Return `n` ports that nobody listens on."""
    sockets = [socket.socket() for _ in range(n)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def peak():
    """Return the peak of this process's memory in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def serve():
    """Hold variables until this process is killed."""
    import tensorflow as tf

    config = json.loads(os.environ["TF_CONFIG"])
    server = tf.distribute.Server(
        config["cluster"], "ps", config["task"]["index"], config=session(tf)
    )
    server.join()


def wait_for_all(n_trainers):
    """Return when so many processes have called this."""
    Path(f"{os.getpid()}.ready").touch()
    end = time.monotonic() + SECONDS_TO_START
    while len(list(Path.cwd().glob("*.ready"))) < n_trainers:
        if time.monotonic() > end:
            raise TimeoutError("another process has not begun to train")
        time.sleep(0.005)


def session(tf):
    """Return settings of one thread for the operations of a step."""
    return tf.compat.v1.ConfigProto(
        intra_op_parallelism_threads=1, inter_op_parallelism_threads=2
    )


def train(options):
    """Train in the role of ``TF_CONFIG``; the chief writes what it measured."""
    import numpy as np
    import tensorflow as tf

    tf.get_logger().setLevel("ERROR")
    fc = tf.feature_column
    names = [f"id{i}" for i in range(options["n_ids"])]
    columns = [fc.numeric_column("x", shape=(options["n_numbers"],))]
    for name in names:
        ids = fc.categorical_column_with_identity(name, options["n_rows"])
        columns.append(fc.embedding_column(ids, options["width"]))
    folder = Path.cwd()
    features = {name: np.load(folder / f"{name}.npy") for name in names}
    features["x"] = np.load(folder / "x.npy")
    labels = np.load(folder / "y.npy")
    config = tf.estimator.RunConfig(
        model_dir=os.environ[MODEL_DIR],
        session_config=session(tf),
        save_checkpoints_steps=10**9,
        save_summary_steps=10**9,
        log_step_count_steps=10**9,
        experimental_max_worker_delay_secs=0,
    )
    model = tf.estimator.DNNClassifier(
        options["hidden"],
        columns,
        optimizer=lambda: tf.keras.optimizers.legacy.SGD(options["rate"]),
        config=config,
    )

    class Clock(tf.estimator.SessionRunHook):
        """Notes the time at every step that it sees."""

        def begin(self):
            self.step = tf.compat.v1.train.get_global_step()
            self.seen = []
            self.n_own = 0

        def before_run(self, context):
            self.n_own += 1
            if self.n_own == OWN_STEPS_BEFORE:
                wait_for_all(options["n_workers"])
            return tf.estimator.SessionRunArgs(self.step)

        def after_run(self, context, values):
            if self.n_own >= 2 * OWN_STEPS_BEFORE:
                self.seen.append((int(values.results), time.perf_counter()))

    clock = Clock()
    input_fn = tf.compat.v1.estimator.inputs.numpy_input_fn(
        features, labels, options["batch_size"], num_epochs=None, shuffle=True
    )
    spec = tf.estimator.TrainSpec(input_fn, max_steps=options["last"], hooks=[clock])
    # Evaluation is left out: the chief goes on to it only with an evaluator.
    tf.estimator.train_and_evaluate(model, spec, tf.estimator.EvalSpec(input_fn, 1))
    if config.is_chief:
        seen = [pair for pair in clock.seen if pair[0] >= options["warm"]]
        (first, begin), (last, end) = seen[0], seen[-1]
        rate = (last - first) * options["batch_size"] / (end - begin)
        result = {"examples_per_second": rate, "steps": last - first, "memory": peak()}
        Path("chief.json").write_text(json.dumps(result))


def cluster(arguments):
    """Run all processes on this machine and return what the chief has measured."""
    n_workers, n_ps = arguments["n_workers"], arguments["n_ps"]
    addresses = [f"127.0.0.1:{port}" for port in free_ports(n_workers + n_ps)]
    jobs = {"chief": addresses[:1], "ps": addresses[n_workers:]}
    if n_workers > 1:
        jobs["worker"] = addresses[1:n_workers]
    with tempfile.TemporaryDirectory() as model_dir:
        started = {}
        for job in ("ps", "chief", "worker"):
            for index in range(len(jobs.get(job, []))):
                task = {"cluster": jobs, "task": {"type": job, "index": index}}
                variables = os.environ | {
                    "TF_CONFIG": json.dumps(task),
                    MODEL_DIR: model_dir,
                    ROLE: job,
                }
                started[job, index] = subprocess.Popen(
                    [sys.executable, __file__], env=variables
                )
        try:
            if started["chief", 0].wait():
                raise RuntimeError("the chief failed")
        finally:
            for process in started.values():
                process.kill()
                process.wait()
    return json.loads(Path("chief.json").read_text())


if __name__ == "__main__":
    arguments = json.loads(Path("arguments.json").read_text())
    role = os.environ.get(ROLE)
    if role is None:
        Path("result.json").write_text(json.dumps(cluster(arguments)))
    elif role == "ps":
        serve()
    else:
        train(arguments)
