# SPDX-License-Identifier: Apache-2.0
"""The parameters of estimators, each declared once: type, default, values and meaning.

A group of parameters is a dataclass, and an estimator inherits its groups. So editors, mypy
and ``inspect.signature`` know the constructor, which does nothing but store. (mypy refuses
unknown arguments where it reads scikit-learn, with ``follow_untyped_imports = true``.)
"""

import inspect
import os
import re
from collections.abc import Sequence
from dataclasses import Field, dataclass, field, fields
from numbers import Real
from typing import Any, ClassVar, TypeVar, dataclass_transform

import numpy as np
import torch
from sklearn.base import BaseEstimator

from skest.adapters import allowed
from skest.checkpoints.checkpoint import Checkpoint
from skest.checkpoints.warm_start import WarmStartSettings
from skest.config.run_config import EXECUTIONS, RunConfig
from skest.core.sklearn_compat import Options, StrOptions
from skest.estimators.estimator import Estimator
from skest.optimizers.schedules import LRSchedulerLike

_T = TypeVar("_T")

_FITTED = """\
auto_params_ : dict
    What was chosen for parameters that are "auto", by name; and the schedule that starts
    at a learning rate.
n_features_in_ : int
    Number of features seen in fit.
feature_names_in_ : ndarray of shape (`n_features_in_`,)
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
fold_estimators_ : sequence of estimators
    Those of the folds of 60 to 999 rows that the recipe held out in turn. They predict
    together with the network of `estimator_`, by the mean of probabilities or numbers
    (of logits behind an `inverse_link_fn`); what goes on from a fit, as `partial_fit`,
    goes on with that one alone. Else empty.
model_dir_ : Path or None
    Directory of its checkpoints.
warm_start_report_ : WarmStartReport or None
    What `warm_start_from` gave to each variable; print it."""


def parameter(*, default: Any, values: list[Any], kw_only: bool = True) -> Any:
    """Declare a parameter; the docstring of its class says what it is for.

    Parameters
    ----------
    default : object
        Its default. A subclass changes it by ``name: type = default`` alone.
    values : list
        What it may be, as in `_parameter_constraints` of scikit-learn.
    kw_only : bool, default=True
        Whether it must be named.
    """
    return field(default=default, kw_only=kw_only, metadata={"values": values})


@dataclass_transform(
    kw_only_default=True, eq_default=False, field_specifiers=(parameter,)
)
def with_parameters(cls: type[_T]) -> type[_T]:
    """Give a class the constructor and the constraints of its parameters.

    Its documentation too, if it is an estimator, which has attributes: all parameters, as
    their groups describe them, with defaults; and a line ``<fitted>`` becomes the
    attributes of all fitted estimators.
    """
    bases: list[dict[str, Field[Any]]] = [
        vars(base).get("__dataclass_fields__", {}) for base in reversed(cls.__mro__[1:])
    ]
    inherited = {name: known for base in bases for name, known in base.items()}
    # A subclass that changes a default need not repeat the values.
    for name in inspect.get_annotations(cls).keys() & inherited.keys():
        known, default = inherited[name], getattr(cls, name)
        if not isinstance(default, Field):  # the values are those of the base
            again = field(
                default=default, kw_only=known.kw_only, metadata=known.metadata
            )
            setattr(cls, name, again)
    # Equality and repr stay scikit-learn's: by identity, and of what differs from
    # defaults.
    made: Any = dataclass(repr=False, eq=False, match_args=False, kw_only=True)(cls)
    declared = {parameter.name: parameter for parameter in fields(made)}
    # scikit-learn's `_validate_params` reads them in `fit`; the constructor checks
    # nothing, as `clone` and `set_params` need it.
    made._parameter_constraints = {n: p.metadata["values"] for n, p in declared.items()}

    # dataclass puts the fields of bases first; a reader looks for the class's own.
    order: list[str] = []
    for base in [*bases, declared]:  # its own go before those of the bases
        order = [name for name in base if name not in order] + order
    signature = inspect.signature(made.__init__)
    itself, *arguments = signature.parameters.values()
    # Positional ones stay in front, as Python demands.
    arguments.sort(
        key=lambda a: order.index(a.name) if declared[a.name].kw_only else -1
    )
    made.__init__.__signature__ = signature.replace(parameters=[itself, *arguments])
    _document(made, [declared[argument.name] for argument in arguments])
    return made


def _document(cls: Any, parameters: list[Field[Any]]) -> None:
    """Keep what a class says of its parameters, and tell an estimator's users of all."""
    text = inspect.cleandoc(cls.__doc__ or "")  # python -OO leaves none
    summary, *sections = re.split(r"^(?=\w[\w ]*\n-+$)", text, flags=re.MULTILINE)
    by_title = {section.partition("\n")[0]: section for section in sections}
    own = re.split(r"^(?=\w+ : )", by_title.pop("Parameters", ""), flags=re.MULTILINE)
    cls._described = {entry.partition(" ")[0]: entry.rstrip() for entry in own[1:]}
    # A group of parameters, which is no estimator.
    if "Attributes" not in by_title:
        return
    described: dict[str, str] = {}
    # The class's own words go before those of its groups.
    for base in reversed(cls.__mro__):
        described |= vars(base).get("_described", {})
    entries = []
    for parameter in parameters:
        kind, _, meaning = described[parameter.name].partition("\n")
        default = parameter.default
        shown = f'"{default}"' if isinstance(default, str) else repr(default)
        entries.append(f"{kind}, default={shown}\n{meaning}")
    section = "\n".join(["Parameters", "----------", *entries, "\n"])
    rest = "".join(by_title.values()).replace("<fitted>", _FITTED)
    cls.__doc__ = summary + section + rest


@with_parameters
class TrainingParameters:
    """How a network is trained.

    Parameters
    ----------
    batch_size : int or "auto"
        Rows of a batch; "auto" is about 200, so that the last batch has at least half as
        many rows as the others (in one process, and not with "sdca"): a few would weigh
        as much as a whole batch. With the recipe (see `learning_rate`) it goes by the
        number of rows, from 32 for a thousand to 1,024; fewer than 60 rows are one batch,
        without dropout.
    max_iter : int or "auto"
        Most epochs to train. A `ConvergenceWarning` tells when they are over before the
        training has converged, unless a schedule of the learning rate is to end there.
        "auto" is 200, and with the recipe it goes by the number of rows, from
        125 to 18.
    max_steps : int
        Most steps to train; None leaves the end to the other rules.
    sampling : {"epoch", "weighted"}
        "epoch" takes every row once an epoch, in a new order, and weighs its loss.
        "weighted" draws rows with replacement, in proportion to their weights, and
        weighs no loss: equal rows are made one, so that a weight of 2 trains exactly
        as two equal rows do, bit for bit, whatever the order of the rows. An epoch is
        as many draws as there are distinct rows.
    early_stopping : bool or "auto"
        Score held-out rows after every epoch, stop when the score no longer improves,
        and return to the best state. The score is minus the loss, of the squared error
        R². "auto" does so with more than 10,000 rows, or if ``fit`` is given `X_val`;
        linear classifiers without penalty from 1,000 rows on, too, if there are fewer
        than 20 for each column.
        Without it, training stops when its own loss no longer improves.

        With the recipe, "auto" holds rows out if there are 60 or more, and goes on from
        the best state with all rows: the last fifth of `max_iter` and of `max_steps`, or a
        quarter of the epochs so far if these ended early, is another cycle of the
        learning rate (of a given `lr_scheduler`, its further steps). Feature columns learn
        from the rows that are not held out. The temperature of a classifier's
        probabilities is learned from the held-out rows if that clearly lowers their loss.
        If they would be fewer than 100 and there are no `hooks`, all rows are held out in
        turn, in five trainings, whose mean scores decide: of the ends of cycles within one
        standard error of the best epoch, the first, to which a new training takes all
        rows. The networks of the folds then predict together with that one, see
        `fold_estimators_`; predictions and exports take six times as much for that, and
        True keeps to one network.
    validation_fraction : float
        Part of the training data to hold out, if `early_stopping`.
    n_iter_no_change : int, inf or "auto"
        Epochs without improvement to wait for. "auto" is 10; with the recipe
        training ends after the first cycle of the schedule that brought nothing, or from
        the third on that was best before its last quarter.
    tol : float
        What counts as an improvement; less where all classes but one are rarer than one in
        nine together, as the whole loss is small then.
    warm_start : bool
        Let ``fit`` go on from the state of the call before, optimizer included. With
        `early_stopping` that state is scored first, on the present held-out rows, and
        stays the best one until an epoch is better, unless it was trained on all rows, as
        the recipe does in the end.
    warm_start_from : fitted estimator, str, path, Estimator or WarmStartSettings
        Where the variables come from that a first fit starts with; a later one with
        `warm_start` goes on from its own. Of a fitted estimator of skest, rows of
        embeddings and of weights are found by what they stand for: the values of a
        vocabulary, the inputs, the classes; and numbers and numeric targets are scaled as
        it scaled them. A directory knows none of that, see `skest.WarmStartSettings`.
    random_state : int, RandomState instance or None
        Seed of initial weights, shuffling, dropout and the held-out rows. The same
        integer gives the same model, bit for bit, on the same machine.
    dtype : {"auto", "float32", "float64"}
        Floating type of the network. "auto" is float64 for a float64 array on the CPU,
        as in scikit-learn's `MLPClassifier`, and float32 otherwise; also for more than
        1,000 rows where hidden layers are trained by the recipe.
    device : str or torch.device
        "auto" is a CUDA device if there is one, else the CPU.
    execution : {"auto", "eager", "graph"}
        How training steps are carried out, see `skest.RunConfig`. "graph" records a step
        once and repeats it, with the same numbers in less time; "auto" does so where it
        pays and all is of skest or PyTorch.
    hooks : sequence of `skest.hooks.Hook` or None
        Run around every training step. Callbacks of scikit-learn are no parameter: they
        are given to `set_callbacks`.
    config : RunConfig
        Settings of the run. With a `model_dir`, every fit writes its checkpoints into a
        new directory in it.
    verbose : int
        1 prints a line about every epoch: the training and the validation loss, examples
        per second, and the time that the fit would still take with all its epochs. What
        else takes more than a few seconds is named, too.
    """

    _parameter_constraints: ClassVar[dict[str, list[Any]]]

    batch_size: int | str = parameter(default="auto", values=allowed.COUNT_OR_AUTO)
    max_iter: int | str = parameter(default=200, values=allowed.COUNT_OR_AUTO)
    max_steps: int | None = parameter(default=None, values=[allowed.COUNT, None])
    sampling: str = parameter(
        default="epoch", values=[StrOptions({"epoch", "weighted"})]
    )
    early_stopping: bool | str = parameter(
        default="auto", values=["boolean", allowed.AUTO]
    )
    validation_fraction: float = parameter(default=0.1, values=[allowed.FRACTION])
    n_iter_no_change: float | str = parameter(
        default=10, values=[*allowed.COUNT_OR_AUTO, Options(Real, {np.inf})]
    )
    tol: float = parameter(default=1e-4, values=allowed.NOT_NEGATIVE)
    warm_start: bool = parameter(default=False, values=["boolean"])
    warm_start_from: Any = parameter(
        default=None,
        values=[
            *(str, os.PathLike, Checkpoint, Estimator, WarmStartSettings),
            *(BaseEstimator, None),
        ],
    )
    random_state: Any = parameter(default=None, values=["random_state"])
    dtype: str = parameter(
        default="auto", values=[StrOptions({"auto", "float32", "float64"})]
    )
    device: Any = parameter(default="auto", values=[str, torch.device])
    execution: str = parameter(default="auto", values=[StrOptions(set(EXECUTIONS))])
    hooks: Sequence[Any] | None = parameter(default=(), values=[tuple, list, None])
    config: RunConfig | None = parameter(default=None, values=[RunConfig, None])
    verbose: int = parameter(default=0, values=["verbose"])


@with_parameters
class OptimizerParameters(TrainingParameters):
    """How the optimizer steps, whichever it is.

    Parameters
    ----------
    lr_scheduler : class or callable
        A class of `torch.optim.lr_scheduler`, or a function from an optimizer to a
        scheduler, as ``partial(CosineAnnealingLR, T_max=10_000)``. It is stepped after
        every training step.
    clip_norm : float or None
        Scale the gradients down to this norm, all together, where they exceed it.
    """

    lr_scheduler: LRSchedulerLike | None = parameter(
        default=None, values=[callable, None]
    )
    clip_norm: float | None = parameter(default=None, values=[allowed.POSITIVE, None])


# What to write for arguments of tf.estimator, scikit-learn and Keras that are not there.

_FROM_HEAD = "give a head that has it to skest.DNNEstimator and its siblings"
_EPOCHS = "use 'max_iter'"
_RATE = "use 'learning_rate', of a wide & deep model 'dnn_learning_rate'"
_NO_PARTITIONER = "leave it out: parameter servers divide tables by rows"

# Found by name only, where a constructor gets what it does not know: positions and what
# is known take the usual way.
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
