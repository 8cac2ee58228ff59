# SPDX-License-Identifier: Apache-2.0
"""A network for the Census income table, on a cluster: every task runs this script.

Each task finds its role in the environment: ``SKEST_CONFIG``, or the variables of
SLURM. On one machine::

    python -m skest.distributed.launch --workers 2 --ps 1 --evaluator \
        examples/cluster/train.py --model-dir model --data 'rows/*.parquet'

The files have the columns of the table, and ``rich`` (0 or 1) as the label. Each worker
reads its share of them. Without a cluster, the script trains in one process.
"""

import argparse
import logging
from typing import Any

import skest
from skest import feature_columns as fc
from skest.distributed import AsyncParameterServer
from skest.heads import BinaryClassHead
from skest.networks import DNN
from skest.optimizers import make_optimizer

WORDS = ("education", "occupation", "workclass", "marital_status")


def make_columns() -> fc.FeatureColumns:
    """Return columns that learn nothing from data: they are the same in all tasks."""
    columns: list[fc.FeatureColumn] = [
        fc.numeric_column("age", normalizer=lambda age: (age - 38) / 13),
        fc.numeric_column("hours_per_week", normalizer=lambda hours: (hours - 40) / 12),
    ]
    for name in WORDS:
        word = fc.categorical_column_with_hash_bucket(name, 1000)
        columns.append(fc.embedding_column(word, dimension=8))
    return fc.FeatureColumns(columns)


def model_fn(
    features: Any, labels: Any, mode: str, params: dict[str, Any]
) -> skest.EstimatorSpec:
    """Return the network; every worker and the evaluator builds it for itself."""
    columns = make_columns().fit(features)
    network = DNN(fc.DenseFeatures(columns), params["hidden_units"], 1)
    return BinaryClassHead().create_estimator_spec(
        features,
        mode,
        network,
        labels,
        make_optimizer("adagrad", network.parameters(), 0.05),
        encode=columns.encode,
    )


def main() -> None:
    """Take part in the training in the role of this task."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", required=True, help="Parquet files, as a pattern")
    parser.add_argument("--test-data", help="files to evaluate on; default: --data")
    parser.add_argument("--model-dir", required=True, help="where all tasks can read")
    parser.add_argument("--max-steps", type=int, default=2000)
    args = parser.parse_args()

    logging.basicConfig(level=logging.INFO)  # how it is going, on standard error
    columns = [*WORDS, "age", "hours_per_week"]
    options: dict[str, Any] = {"columns": columns, "label": "rich"}
    train = skest.inputs.parquet_input_fn(
        args.data, 256, shuffle=True, num_epochs=None, **options
    )
    test = skest.inputs.parquet_input_fn(
        args.test_data or args.data, 4096, shuffle=False, **options
    )
    config = skest.RunConfig(
        model_dir=args.model_dir,
        random_seed=0,
        save_checkpoints_steps=500,
        train_distribute=AsyncParameterServer(),
    )
    estimator = skest.Estimator(
        model_fn, config=config, params={"hidden_units": (64, 32)}
    )
    metrics, _ = skest.train_and_evaluate(
        estimator,
        skest.TrainSpec(train, max_steps=args.max_steps),
        skest.EvalSpec(test, steps=None, throttle_secs=0),
    )
    print(config.task_type, config.task_id, metrics)


if __name__ == "__main__":
    main()
