# SPDX-License-Identifier: Apache-2.0
"""The strings that belong to the contract: modes, prediction keys and metric keys.

They equal those of ``tf.estimator``, so that dashboards and serving code written for
it find the same names. Those of the best k classes are skest's own.
"""

__all__ = [
    "MetricKeys",
    "ModeKeys",
    "PredictionKeys",
]


class ModeKeys:
    """What a ``model_fn`` is called for.

    Examples
    --------
    >>> from skest.keys import ModeKeys
    >>> ModeKeys.PREDICT
    'infer'
    """

    TRAIN = "train"
    EVAL = "eval"
    PREDICT = "infer"


class PredictionKeys:
    """Keys of the dictionary that a head's ``predictions`` returns."""

    LOGITS = "logits"
    LOGISTIC = "logistic"
    PROBABILITIES = "probabilities"
    CLASS_IDS = "class_ids"
    CLASSES = "classes"
    ALL_CLASS_IDS = "all_class_ids"
    ALL_CLASSES = "all_classes"
    TOP_K_CLASS_IDS = "top_k_class_ids"
    TOP_K_PROBABILITIES = "top_k_probabilities"
    TOP_K_CLASSES = "top_k_classes"
    PREDICTIONS = "predictions"


class MetricKeys:
    """Names of evaluation results; ``%g`` stands for a threshold, ``%d`` for k."""

    LOSS = "loss"
    GLOBAL_STEP = "global_step"
    AVERAGE_LOSS = "average_loss"
    ACCURACY = "accuracy"
    PRECISION = "precision"
    RECALL = "recall"
    PREDICTION_MEAN = "prediction/mean"
    LABEL_MEAN = "label/mean"
    ACCURACY_BASELINE = "accuracy_baseline"
    AUC = "auc"
    AUC_PR = "auc_precision_recall"
    TOP_K_ACCURACY = "accuracy/top_%d"
    ACCURACY_AT_THRESHOLD = "accuracy/positive_threshold_%g"
    PRECISION_AT_THRESHOLD = "precision/positive_threshold_%g"
    RECALL_AT_THRESHOLD = "recall/positive_threshold_%g"
