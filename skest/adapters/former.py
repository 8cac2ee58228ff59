# SPDX-License-Identifier: Apache-2.0
"""What to write for arguments of tf.estimator, scikit-learn and Keras, by method."""

_FROM_HEAD = "give a head that has it to skest.DNNEstimator and its siblings"
_EPOCHS = "use 'max_iter'"
_RATE = "use 'learning_rate', of a wide & deep model 'dnn_learning_rate'"
_TO_CONSTRUCTOR = "give it to the constructor of the estimator"
_NO_PARTITIONER = "leave it out: parameter servers divide tables by rows"

FORMER_ARGUMENTS = {
    "activation_fn": "use 'activation'",
    "alpha": "use 'weight_decay', of a linear model 'l1' and 'l2'",
    "dnn_activation_fn": "use 'dnn_activation'",
    "epochs": _EPOCHS,
    "hidden_layer_sizes": "use 'hidden_units', of a wide & deep model 'dnn_hidden_units'",
    "input_layer_partitioner": _NO_PARTITIONER,
    "label_dimension": "leave it out: it is read off the y of fit",
    "label_vocabulary": "leave it out: classes are read off the y of fit, strings too",
    "learning_rate_init": _RATE,
    "loss": "leave it out: it follows from the y of fit, or from the head",
    "loss_reduction": _FROM_HEAD,
    "lr": _RATE,
    "model_dir": "use config=skest.RunConfig(model_dir=...)",
    "max_epochs": _EPOCHS,
    "n_classes": "leave it out: classes are read off the y of fit",
    "n_epochs": _EPOCHS,
    "partitioner": _NO_PARTITIONER,
    "return_sequences": "use a network of your own in a skest.Estimator",
    "rnn_cell_fn": "use 'cell_type', or a network of your own in a skest.Estimator",
    "scoring": "leave it out: early stopping scores as 'score' does, or by the loss",
    "solver": "use 'optimizer', of a wide & deep model 'dnn_optimizer'",
    "weight_column": "give fit the weights as 'sample_weight'",
}

_WHOLE = "leave it out: all rows of X are taken"

FIT_ARGUMENTS = {
    "batch_size": _TO_CONSTRUCTOR,
    "epochs": "give the constructor of the estimator 'max_iter'",
    "eval_set": "use 'X_val' and 'y_val'",
    "hooks": _TO_CONSTRUCTOR,
    "input_fn": "use train(input_fn)",
    "steps": "give the constructor of the estimator 'max_steps'",
    "validation_data": "use 'X_val' and 'y_val'",
    "verbose": _TO_CONSTRUCTOR,
}
TRAIN_ARGUMENTS = {
    "hooks": _TO_CONSTRUCTOR,
    "saving_listeners": "use the train of a skest.Estimator, which has them",
    "verbose": _TO_CONSTRUCTOR,
}
EVALUATE_ARGUMENTS = {
    "hooks": "leave it out: all rows are evaluated at once",
    "input_fn": "give it the rows: evaluate(X, y)",
    "steps": _WHOLE,
}
PREDICT_ARGUMENTS = {
    "hooks": "leave it out: all rows are predicted at once",
    "input_fn": "give it the rows as 'X'",
    "predict_keys": "use predict_proba or decision_function",
}
