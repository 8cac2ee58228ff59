# SPDX-License-Identifier: Apache-2.0
"""What became of arguments of the canned estimators of tf.estimator."""

__all__ = ["FORMER_ARGUMENTS"]

_FROM_HEAD = "give a head that has it to skest.DNNEstimator and its siblings"
_NO_PARTITIONER = "leave it out: parameter servers divide tables by rows"

FORMER_ARGUMENTS = {
    "activation_fn": "use 'activation'",
    "dnn_activation_fn": "use 'dnn_activation'",
    "input_layer_partitioner": _NO_PARTITIONER,
    "label_dimension": "leave it out: it is read off the y of fit",
    "label_vocabulary": "leave it out: classes are read off the y of fit, strings too",
    "loss_reduction": _FROM_HEAD,
    "model_dir": "use config=skest.RunConfig(model_dir=...)",
    "n_classes": "leave it out: classes are read off the y of fit",
    "partitioner": _NO_PARTITIONER,
    "return_sequences": "use a network of your own in a skest.Estimator",
    "rnn_cell_fn": "use 'cell_type', or a network of your own in a skest.Estimator",
    "weight_column": "give fit the weights as 'sample_weight'",
}
