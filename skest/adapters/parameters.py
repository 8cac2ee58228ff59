# SPDX-License-Identifier: Apache-2.0
"""The parameters that all estimators share: their docstrings, and what "auto" is."""

import math
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple, TypeVar

from skest.heads.base import Head
from skest.optimizers.schedules import CosineCycles

_T = TypeVar("_T")

_SHARED = {
    "columns": """feature_columns : FeatureColumns or list of columns, default=None
        What the features are and how they enter the network; see
        `skest.feature_columns`. None infers it: numbers are standardised, gaps in them
        filled with the mean and marked; strings and categories become indicators if
        they have few levels and embeddings if they have many, see
        `skest.feature_columns.infer_feature_columns`. With a learning rate "auto",
        numbers get piecewise-linear columns as well. What given columns do not read is
        dropped with a warning, see `FeatureColumns` and its `remainder`.""",
    "network": """activation : str or callable, default="relu"
        Of the hidden layers: a name of `skest.networks.ACTIVATIONS` or a function of a
        tensor.
    dropout : float or "auto", default="auto"
        Probability that a hidden unit is dropped in training. "auto" is .1 with a
        learning rate "auto", else 0.
    batch_norm : bool, default=False
        Normalise after every hidden layer.
    <members>""",
    "optimizer": """optimizer : str, class, callable or list, default="auto"
        A name of `skest.optimizers.OPTIMIZERS`, a class of `torch.optim`, a function from
        parameters to an optimizer, or a list of pairs of a pattern of parameter names and
        one of these, as ``[("inputs.*", "adagrad"), ("*", "adam")]``. "auto" is AdamW with
        betas of .9 and .95, and Adagrad at 25 times the rate for tables of embeddings.
    learning_rate : float, callable, "auto" or None, default="auto"
        A function of the global step makes a schedule; None is the optimizer's own
        default. "auto" falls to zero in four cosine cycles of doubling length, see
        `skest.optimizers.schedules.CosineCycles`, over the epochs of `max_iter`, from a
        peak of .002 (of Adagrad, FTRL and SGD .05); it is the peak itself in
        `partial_fit` and `train`, which know no end. Numbers that are predicted then
        stay within the range of the `y` that was trained on, but for those of Poisson
        and logistic losses.
    weight_decay : float or "auto", default="auto"
        L2 penalty of the optimizer; of AdamW, decay of the weights. "auto" is .01 if both
        are "auto", else 0.""",
    "rnn_schedule": """lr_scheduler : class or callable, default=None
        As in the other estimators: a class of `torch.optim.lr_scheduler`, or a function
        from an optimizer to a scheduler, stepped after every training step.
    clip_norm : float or None, default=5.0
        Scale the gradients down to this norm, all together, where they exceed it.""",
    "sequence_columns": """\
sequence_feature_columns, context_feature_columns : FeatureColumns or list of columns, \
default=None
        What the steps of the sequences are, and what holds for all steps of a row; see
        `skest.feature_columns`. If both are None, they are inferred: lists become
        sequences of standardised numbers or of categories, other columns the context; an
        array of shape (n_samples, n_steps) is one sequence of numbers in each row, where
        NaN at the end is padding. If only the first is given, there is no context.
    cell_type : {"simple_rnn", "lstm", "gru"}, default="simple_rnn"
        Kind of the recurrent layers, see `skest.networks.RNN`. "simple_rnn" learns from
        the fewest steps; "gru" and "lstm" can add up or remember over more of them.""",
    "head": """head : Head, default=None
        Loss, predictions and metrics: a head of `skest.heads`, also a `MultiHead` for
        several targets. None chooses one for `y`: several labels for a matrix of zeros
        and ones; for other matrices, tables and dictionaries one for each column, as
        `MultiHeadEstimator` does with ``heads="auto"``; classes or numbers for a single
        column.""",
    "linear_columns": """feature_columns : FeatureColumns or list of columns, default=None
        What the features are; see `skest.feature_columns`. Categorical columns are taken
        as they are. None infers it: numbers are standardised, gaps in them filled with
        the mean and marked; strings and categories become categorical columns.""",
    "linear_optimizer": """optimizer : str, class, callable, list or LinearSDCA, \
default="ftrl"
        A name of `skest.optimizers.OPTIMIZERS`, a class of `torch.optim`, a function from
        parameters to an optimizer, or a list of pairs of a pattern of parameter names and
        one of these. "sdca", or `skest.LinearSDCA` with settings, is dual coordinate
        ascent, for two classes or the squared error of one target.
    learning_rate : float, callable, "auto" or None, default="auto"
        "auto" is ``min(0.2, 1 / sqrt(n_columns))``; a function of the global step makes a
        schedule; None is the optimizer's own default.
    l1, l2 : float, default=0.0
        L1 and L2 penalties of "ftrl" and "proximaladagrad".
    weight_decay : float, default=0.0
        L2 penalty of other optimizers.
    <schedule>""",
    "regression_loss": """loss : {"squared_error", "absolute_error", "huber", "quantile", \
"poisson", "logistic"}, default="squared_error"
        What is minimised. "absolute_error" predicts medians; "huber" is half the squared
        error up to a difference of one standard deviation of `y`, and linear beyond (in
        ``evaluate``: up to a difference of 1); "poisson"
        is for counts, `y >= 0`, and predicts the exponential of the network's output;
        "logistic" is for shares, `y` in [0, 1], and predicts its sigmoid. Early stopping
        goes by R² for "squared_error", and by the mean loss, with a minus, for the others.
    quantile : float in (0, 1), default=0.5
        What loss="quantile" predicts; another loss takes no other value.""",
    "baseline_optimizer": """optimizer : str, class, callable or list, default="ftrl"
        A name of `skest.optimizers.OPTIMIZERS`, a class of `torch.optim`, a function from
        parameters to an optimizer, or a list of pairs of a pattern of parameter names and
        one of these, as ``[("inputs.*", "adagrad"), ("*", "adam")]``.
    learning_rate : float, callable or None, default=0.3
        A function of the global step makes a schedule; None is the optimizer's own
        default.
    <schedule>""",
    "combined_columns": """\
linear_feature_columns, dnn_feature_columns : FeatureColumns or list of columns, \
default=None
        What the linear model and the DNN take; see `skest.feature_columns`. If both are
        None, they are inferred. If only one is given, there is only that part.""",
    "combined_network": """dnn_activation : str or callable, default="relu"
        Of the hidden layers: a name of `skest.networks.ACTIVATIONS` or a function of a
        tensor.
    dnn_dropout : float or "auto", default="auto"
        Probability that a hidden unit is dropped in training. "auto" is .1 with a
        learning rate "auto", else 0.
    batch_norm : bool, default=False
        Normalise after every hidden layer.
    <members>
    dnn_optimizer : str, class, callable or list, default="auto"
        Of the DNN: a name of `skest.optimizers.OPTIMIZERS`, a class of `torch.optim`, a
        function from parameters to an optimizer, or a list of pairs of a pattern of
        parameter names, which begin with "dnn.", and one of these. "auto" is that of
        `DNNClassifier`.
    dnn_learning_rate : float, callable, "auto" or None, default="auto"
        A function of the global step makes a schedule; None is the optimizer's own
        default. "auto" is the schedule of `DNNClassifier`.
    linear_optimizer : str, class, callable or list, default="ftrl"
        Of the linear model.
    linear_learning_rate : float, callable, "auto" or None, default=0.05
        "auto" is that of TensorFlow, ``min(0.005, 1 / sqrt(n_columns))``; the others as
        for `dnn_learning_rate`.
    linear_sparse_combiner : {"sum", "mean", "sqrtn"}, default="sum"
        How the weights of several values in one cell are combined.
    l1, l2 : float, default=0.0
        Penalties of the linear model, if its optimizer is "ftrl" or "proximaladagrad".
    weight_decay : float or "auto", default="auto"
        Of the DNN, as in `DNNClassifier`.
    <schedule>""",
    "members": """n_members : int or "auto", default="auto"
        Networks in one: they share the hidden layers, each scales the inputs by numbers
        of its own and has its own last layer, and learns from its own errors; the mean of
        their probabilities, or numbers, is predicted (TabM-mini, arXiv 2410.24210).
        "auto" is 3 with a learning rate "auto", else 1.""",
    "schedule": """lr_scheduler : class or callable, default=None
        A class of `torch.optim.lr_scheduler`, or a function from an optimizer to a
        scheduler, as ``partial(CosineAnnealingLR, T_max=10_000)``. It is stepped after
        every training step.
    clip_norm : float, default=None
        Scale the gradients down to this norm, all together, where they exceed it.""",
    "model_fn": """model_fn : callable
        ``model_fn(features, labels, mode, params, config) -> EstimatorSpec``, as for
        `skest.Estimator`: it builds a network and an optimizer, and says what the loss and
        the predictions are. Only ``features`` and ``mode`` are mandatory. `features` and
        `labels` are the first batch, to read shapes off; features are an array if X is an
        array, else a dictionary of columns, as they are. The default of None is there
        because scikit-learn constructs estimators without arguments; ``fit`` refuses it.

        Sample weights and `class_weight` reach the loss by themselves if the
        specification comes from a head, or if the loss returns one number for each row;
        a loss that returns one number for the batch is an error then.
    params : dict, default=None
        Hyperparameters for `model_fn`. A search reaches its entries as ``params__<key>``.
        What `model_fn` gets is a copy, with these entries unless `params` has them:
        "head", a head for `y`, whose ``create_estimator_spec`` completes a network and
        an optimizer; "n_classes" or "n_outputs", the number of classes or of columns of
        `y`; and with `feature_columns`, "feature_columns", the fitted ones.
    feature_columns : FeatureColumns or list of columns, default=None
        With them, features are dictionaries of encoded columns, which
        ``DenseFeatures(params["feature_columns"])`` of `skest.feature_columns` takes;
        embeddings have sparse gradients, as `skest.optimizers.make_optimizer` expects.
        Nothing is inferred: None leaves the features raw. An array must be finite
        then; columns of a table are for the ``encode`` of `model_fn`, and without it
        become tensors where they are numbers.""",
    "training": """batch_size : int or "auto", default="auto"
        Rows of a batch; "auto" is ``min(200, n_samples)``, and with a learning rate
        "auto" goes by the number of rows, from 32 for a thousand to 1,024; fewer than 100
        rows are one batch, without dropout.
    max_iter : int, default=200
        Most epochs to train. A `ConvergenceWarning` tells when they are over before the
        training has converged, unless a schedule of the learning rate is to end there.
        The default of DNNs is "auto", which is 200, and with a learning rate "auto" goes
        by the number of rows, from 100 to 15.
    max_steps : int, default=None
        Most steps to train; None leaves the end to the other rules.
    sampling : {"epoch", "weighted"}, default="epoch"
        "epoch" takes every row once an epoch, in a new order, and weighs its loss.
        "weighted" draws rows with replacement, in proportion to their weights, and
        weighs no loss: equal rows are made one, so that a weight of 2 trains exactly
        as two equal rows do, bit for bit, whatever the order of the rows. An epoch is
        as many draws as there are distinct rows.""",
    "class_weight": """class_weight : dict, "balanced" or None, default=None
        Weights of the classes, multiplied with the sample weights. "balanced" makes
        all classes weigh the same.""",
    "stopping": """early_stopping : bool or "auto", default="auto"
        Score held-out rows after every epoch, stop when the score no longer improves,
        and return to the best state. The score is minus the loss, of the squared error
        R². "auto" does so with more than 10,000 rows, or if ``fit`` is given `X_val`.
        Without it, training stops when its own loss no longer improves.

        With a learning rate "auto", "auto" holds rows out if there are 100 or more, and
        in the end a new training takes all rows, as far as the best epoch. The
        temperature of a classifier's probabilities is learned from the held-out rows if
        that clearly lowers their loss. If they would be fewer than 100 and there are no
        `hooks`, all rows are held out in turn, in five trainings, whose mean scores
        decide: of the ends of cycles of the schedule within one standard error of the
        best epoch, the first.
    validation_fraction : float, default=0.1
        Part of the training data to hold out, if `early_stopping`.
    n_iter_no_change : int, default=10
        Epochs without improvement to wait for. The default of DNNs is "auto", which is
        10; with a learning rate "auto" training ends after the first cycle of the
        schedule that brought nothing, or from the third on that was best before its
        last quarter.
    tol : float, default=1e-4
        What counts as an improvement.
    warm_start : bool, default=False
        Let ``fit`` go on from the state of the call before, optimizer included. With
        `early_stopping` that state is scored first, on the present held-out rows, and
        stays the best one until an epoch is better.
    warm_start_from : fitted estimator, str, path, Estimator or WarmStartSettings, \
default=None
        Where the variables come from that a first fit starts with; a later one with
        `warm_start` goes on from its own. Of a fitted estimator of skest, rows of
        embeddings and of weights are found by what they stand for: the values of a
        vocabulary, the inputs, the classes; and numbers and numeric targets are scaled as
        it scaled them. A directory knows none of that, see `skest.WarmStartSettings`.
    random_state : int, RandomState instance or None, default=None
        Seed of initial weights, shuffling, dropout and the held-out rows. The same
        integer gives the same model, bit for bit, on the same machine.
    dtype : {"auto", "float32", "float64"}, default="auto"
        Floating type of the network. "auto" is float64 for a float64 array on the CPU,
        as in scikit-learn's `MLPClassifier`, and float32 otherwise; also for more than
        1,000 rows where hidden layers are trained at the rate "auto".
    device : str or torch.device, default="auto"
        "auto" is a CUDA device if there is one, else the CPU.
    execution : {"auto", "eager", "graph"}, default="auto"
        How training steps are carried out, see `skest.RunConfig`. "graph" records a step
        once and repeats it, with the same numbers in less time; "auto" does so where it
        pays and all is of skest or PyTorch.
    hooks : sequence of `skest.hooks.Hook` or None, default=()
        Run around every training step. Callbacks of scikit-learn are no parameter: they
        are given to `set_callbacks`.
    config : RunConfig, default=None
        Settings of the run. With a `model_dir`, every fit writes its checkpoints into a
        new directory in it.
    verbose : int, default=0
        1 prints a line about every epoch: the training and the validation loss, examples
        per second, and the time that all epochs would still take.""",
    "coefficients": """coef_ : ndarray of shape (n_features,) or (n_logits, n_features)
        Weights of the columns of ``feature_columns_.transform(X)``. Selectors that go by
        `coef_`, as RFE and SelectFromModel, need these to be the features of X: see
        `LinearClassifier.coef_`.
    intercept_ : float or ndarray of shape (n_logits,)
        Biases. As in `sklearn.linear_model`, a single target of a regression, of shape
        (n_samples,), has one number, and two classes have one logit.""",
    "fitted": """auto_params_ : dict
        What was chosen for parameters that are "auto", by name.
    n_features_in_ : int
        Number of features seen in fit.
    feature_names_in_ : ndarray of shape (n_features_in_,)
        Names of the features, if they have some.
    n_iter_ : int
        Epochs trained.
    n_steps_ : int
        Global step of the state that is kept.
    loss_ : float
        Loss of the last epoch.
    loss_curve_ : list of float
        Mean training loss of each epoch.
    validation_scores_ : list of float or None
        Scores of the held-out rows after each epoch that had some, of all fits with
        `warm_start`; of rows held out in turn the means.
    best_validation_score_ : float or None
        The best score in the last fit, on its held-out rows, which is that of the state
        it returned to, or of rows held out in turn of the epoch chosen; None if it held
        no rows out. While the rows stay the same, it is
        the best of all `validation_scores_`.
    estimator_ : skest.Estimator
        The core Estimator with the trained checkpoint.
    model_dir_ : Path or None
        Directory of its checkpoints.
    warm_start_report_ : WarmStartReport or None
        What `warm_start_from` gave to each variable; print it.""",
}


def with_shared_docs(cls: type[_T]) -> type[_T]:
    """Replace ``<training>``, ``<stopping>`` and so on in a class docstring."""
    if cls.__doc__:  # python -OO leaves none
        for name, text in _SHARED.items():
            cls.__doc__ = cls.__doc__.replace(f"<{name}>", text)
    return cls


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


# Batches by the number of rows (up to which): many steps where there are few rows.
_BATCH_SIZES = ((1_024, 32), (2_048, 64), (8_192, 128), (65_536, 256), (262_144, 512))
_LARGEST_BATCH = 1_024
# Steps of a training that needs all cycles, within bounds for the epochs.
_N_STEPS = 4_000
_FEWEST_EPOCHS, _MOST_EPOCHS = 15, 100
# Fewer rows say too little about the best epoch. They come in one batch and without
# dropout: then nothing is random but the start, and a weight is a repetition.
_FEWEST_ROWS_TO_HOLD_OUT = 100
# Nor does a part with fewer: then every row is held out once.
_FEWEST_HELD_OUT, _N_FOLDS = 100, 5
# Highest rates of the schedule, by optimizer.
_PEAKS = {"auto": 0.002, "adam": 0.002, "adamw": 0.002, "rmsprop": 0.002}
_OTHER_PEAK = 0.05
# Without the schedule "auto" is what it was before there was one.
_PLAIN: dict[str, Any] = {"batch_size": 200, "max_iter": 200, "n_iter_no_change": 10}
_PLAIN |= {"dropout": 0.0, "dnn_dropout": 0.0, "weight_decay": 0.0, "n_members": 1}
_RECIPE = {"dropout": 0.1, "dnn_dropout": 0.1, "weight_decay": 0.01, "n_members": 3}
# What a person is told of these choices.
_REASONS = {
    "batch_size": "by the number of rows",
    "max_iter": "by the number of rows: about as many steps for all tables",
    "n_iter_no_change": "the cycles of the rate say when to stop",
    "dropout": "none below 100 rows",
    "dnn_dropout": "none below 100 rows",
    "weight_decay": "of AdamW; none with another optimizer",
    "n_members": "networks in one, if the head allows it",
    "early_stopping": "rows are held out if there are 100",
}
_PLAIN_REASONS = {
    "batch_size": "200, or all rows",
    "early_stopping": "rows are held out if there are more than 10,000",
}
_MANY_ROWS = 10_000  # rows are held out above this, as HistGradientBoosting does


class Budget(NamedTuple):
    """How long a training on a table may last."""

    batch_size: int
    max_iter: int


def budget_of(n_rows: float) -> Budget:
    """Return the budget for a number of rows.

    Examples
    --------
    >>> from skest.adapters.parameters import budget_of
    >>> budget_of(150), budget_of(10_000), budget_of(1_000_000)
    (Budget(batch_size=32, max_iter=100), Budget(batch_size=256, max_iter=100), \
Budget(batch_size=1024, max_iter=15))
    """
    sizes = (size for most, size in _BATCH_SIZES if n_rows <= most)
    batch_size = next(sizes, _LARGEST_BATCH)
    if n_rows < _FEWEST_ROWS_TO_HOLD_OUT:
        return Budget(int(n_rows), _MOST_EPOCHS)
    n_epochs = round(_N_STEPS * batch_size / n_rows)
    return Budget(batch_size, min(max(n_epochs, _FEWEST_EPOCHS), _MOST_EPOCHS))


class AutoParameters:
    """Fits with parameters that are "auto".

    Attributes
    ----------
    auto_params_ : dict of str to object
        What was chosen for parameters that are "auto".
    """

    auto_params_: dict[str, Any]
    _target: Any
    validation_fraction: float
    hooks: Any
    #: The parameters with the optimizer and the rate of a network that has the recipe.
    _recipe_for: ClassVar[tuple[str, str] | None] = None

    def _chosen(self, name: str) -> Any:
        """Return a parameter, or what was chosen for it if it is "auto"."""
        value = getattr(self, name)
        return (
            vars(self).get("auto_params_", {}).get(name, value)
            if _auto(value)
            else value
        )

    @property
    def _has_schedule(self) -> bool:
        """Whether the rate follows the schedule of the recipe."""
        return self._recipe_for is not None and _auto(
            getattr(self, self._recipe_for[1])
        )

    @property
    def _takes_members(self) -> bool:
        """Whether the last layer may be several."""
        output: Any = type(self._target.head(None)).output_layer
        return output is Head.output_layer and not getattr(self, "batch_norm", False)

    def _choose(self, n_rows: float) -> None:
        """Choose for a training on so many rows."""
        choices: dict[str, Any] = {**_PLAIN, "early_stopping": n_rows > _MANY_ROWS}
        choices["batch_size"] = min(choices["batch_size"], n_rows)
        if self._recipe_for is not None and self._has_schedule:
            choices |= budget_of(n_rows)._asdict() | _RECIPE
            if not self._takes_members:
                choices["n_members"] = 1
            if getattr(self, self._recipe_for[0]) != "auto":
                choices["weight_decay"] = 0.0  # an L2 penalty is another thing
            choices["early_stopping"] = n_rows >= _FEWEST_ROWS_TO_HOLD_OUT
            if n_rows < _FEWEST_ROWS_TO_HOLD_OUT:
                choices |= dict.fromkeys(("dropout", "dnn_dropout"), 0.0)
            choices["n_iter_no_change"] = math.inf  # the schedule says when to look
        self.auto_params_ = {
            name: choice
            for name, choice in choices.items()
            if _auto(getattr(self, name, None))
        }

    def _schedule(self, n_steps: int | None, first_step: int = 0) -> None:
        """Choose the rate for so many steps; None are steps without a known end.

        It is constant for those, and where a scheduler is given.
        """
        if self._recipe_for is None or not self._has_schedule:
            return
        optimizer, rate = self._recipe_for
        name = getattr(self, optimizer)
        peak = _PEAKS.get(name.lower(), _OTHER_PEAK) if isinstance(name, str) else None
        chosen: Any = peak
        own = getattr(self, "lr_scheduler", None) is None
        if peak is not None and n_steps is not None and own:
            chosen = CosineCycles(peak, n_steps, first_step)
        self.auto_params_ = {**self.auto_params_, rate: chosen}

    def _reasons(self) -> dict[str, tuple[Any, str]]:
        """Return what was chosen for parameters that are "auto", and why."""
        why = dict.fromkeys(self.auto_params_, "what it was without the recipe")
        why |= _REASONS if self._has_schedule else _PLAIN_REASONS
        if self._recipe_for is not None:
            why[self._recipe_for[1]] = "high first, near zero at the end of each cycle"
        return {name: (value, why[name]) for name, value in self.auto_params_.items()}

    def _n_folds(self, n_rows: int) -> int:
        """Return by how many trainings to find the best epoch; 1 holds out one part."""
        n_held_out = self.validation_fraction * n_rows
        return _N_FOLDS if n_held_out < _FEWEST_HELD_OUT and not self.hooks else 1

    def _ends(self, n_epochs: int) -> Sequence[int]:
        """Return the epochs after which the schedule lets training end."""
        rate = self._chosen(self._recipe_for[1]) if self._recipe_for else None
        return rate.ends(n_epochs) if isinstance(rate, CosineCycles) else ()


def _auto(value: Any) -> bool:
    return isinstance(value, str) and value == "auto"
