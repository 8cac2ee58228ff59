# SPDX-License-Identifier: Apache-2.0
"""`to_skorch` and `from_skorch`: networks exchanged with skorch, weights and all."""

import os
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from sklearn.base import clone, is_classifier
from sklearn.utils.validation import check_is_fitted
from skorch import NeuralNet, NeuralNetClassifier, NeuralNetRegressor
from skorch.dataset import Dataset
from torch import Tensor, nn
from torch.optim import Optimizer

from skest.adapters.base import SkestEstimator
from skest.adapters.model_fn import SkestModelFn
from skest.adapters.targets.base import TargetScale
from skest.adapters.user_model import GIVEN_PARAMS
from skest.canned.dnn import member_loss
from skest.checkpoints.checkpoint import Checkpoint, load_variables
from skest.config.run_config import RunConfig
from skest.estimators.estimator import Estimator
from skest.heads.single_task import SingleTaskHead
from skest.inputs.array_dataset import take_rows
from skest.keys import ModeKeys, PredictionKeys
from skest.spec import EstimatorSpec


def to_skorch(estimator: SkestEstimator, **net_params: Any) -> NeuralNet:
    """Return an initialized skorch net with the network of a fitted estimator.

    Parameters
    ----------
    estimator : estimator of skest
        A fitted classifier with one label per row, or a fitted regressor. Of several
        networks (`fold_estimators_`), the net has the one of all rows.
    **net_params
        Parameters of the net, such as ``optimizer``, ``lr``, ``max_epochs`` and
        ``callbacks``; the others have skorch's defaults.

    Returns
    -------
    skorch.NeuralNetClassifier or skorch.NeuralNetRegressor
        It takes what `skorch_features` makes of X. A classifier knows the classes by
        their numbers: ``classes_[net.predict(...)]`` of the estimator are the labels. A
        regressor predicts ``y`` in an array of shape (n_samples, n_outputs). ``fit`` and
        ``partial_fit`` of the net go on from the weights, with the loss of the estimator.

    Raises
    ------
    TypeError
        If `estimator` is no estimator of skest.
    NotFittedError
        If it is not fitted.
    ValueError
        If it has several heads, or several labels per row, or if its network is made by
        a model function of yours, which only runs on data.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from skest import DNNClassifier
    >>> from skest.adapters.skorch import skorch_features, to_skorch
    >>> X, y = load_iris(return_X_y=True)
    >>> model = DNNClassifier((8,), max_iter=5, early_stopping=True, random_state=0)
    >>> net = to_skorch(model.fit(X, y), lr=0.1, verbose=0)
    >>> bool((net.predict(skorch_features(model, X)) == model.predict(X)).all())
    True
    """
    spec, head, scale = _parts(estimator)
    network: Any = spec.network
    is_single = isinstance(head, SingleTaskHead)
    answers = (
        head.predictions(torch.zeros(1, head.logits_dimension)) if is_single else {}
    )
    if PredictionKeys.CLASS_IDS in answers:
        n_classes = answers[PredictionKeys.PROBABILITIES].shape[1]
        key, net_class = PredictionKeys.PROBABILITIES, NeuralNetClassifier
        options = {"classes": range(n_classes), **net_params}
    elif PredictionKeys.PREDICTIONS in answers:
        key, net_class = PredictionKeys.PREDICTIONS, NeuralNetRegressor
        options = net_params
    else:
        raise ValueError(
            "to_skorch takes classifiers with one label per row, and regressors; this "
            f"{type(estimator).__name__} was fitted to another kind of y."
        )
    checkpoint: Any = estimator.estimator_.checkpoint
    load_variables(network, checkpoint.variables)
    own = {
        "criterion": _HeadLoss(head, scale),
        "dataset": _Rows,
        "predict_nonlinearity": partial(_answer, head=head, key=key),
    }
    module = _KeywordNetwork(network, scale)
    # The user's parameters go last, so that another loss is possible.
    return net_class(module, **{**own, **options}).initialize()


def skorch_features(estimator: SkestEstimator, X: Any) -> dict[str, Any]:
    """Return features as the net of `to_skorch` takes them.

    Parameters
    ----------
    estimator : estimator of skest
        The one given to `to_skorch`.
    X : array-like, DataFrame or dict of arrays
        Data as in its ``fit``.

    Returns
    -------
    dict of tensors
        Possibly nested.

    Raises
    ------
    TypeError, NotFittedError
        As `to_skorch`.
    ValueError
        If its network is made by a model function of yours.
    """
    spec, _, _ = _parts(estimator)
    features = estimator._check_features(X, reset=False)
    return features if spec.encode is None else dict(spec.encode(features))


def from_skorch(
    net: NeuralNet,
    model_dir: str | os.PathLike[str] | None = None,
    config: RunConfig | None = None,
) -> Estimator:
    """Return an Estimator with the model of a skorch net, as far as it is trained.

    Parameters
    ----------
    net : skorch.NeuralNet
        Initialized, and fitted or not. It is left as it is.
    model_dir, config
        See `skest.Estimator`.

    Returns
    -------
    Estimator
        Its model function is ``skorch_model_fn(net)``. Its checkpoint holds the variables
        of module and criterion and the state of the optimizers; the global step is the
        number of batches in the history of the net.

    Raises
    ------
    TypeError
        If `net` is no `skorch.NeuralNet`.
    NotFittedError
        If it is not initialized.

    Examples
    --------
    >>> import torch
    >>> from sklearn.datasets import load_iris
    >>> from skorch import NeuralNetClassifier
    >>> import skest
    >>> from skest.adapters.skorch import from_skorch
    >>> X, y = load_iris(return_X_y=True)
    >>> X = X.astype("float32")
    >>> net = NeuralNetClassifier(
    ...     torch.nn.Linear,
    ...     module__in_features=4,
    ...     module__out_features=3,
    ...     criterion=torch.nn.CrossEntropyLoss,
    ...     verbose=0,
    ... ).fit(X, y)
    >>> estimator = from_skorch(net)
    >>> input_fn = skest.inputs.numpy_input_fn(X[:1], shuffle=False)
    >>> (row,) = estimator.predict(input_fn)
    >>> bool((row["probabilities"] == net.predict_proba(X[:1])[0]).all())
    True
    """
    # The wrong kind of object is refused before its state is asked for.
    estimator = Estimator(skorch_model_fn(net), model_dir=model_dir, config=config)
    net.check_is_fitted()
    n_steps = sum(epoch.get("train_batch_count", 0) for epoch in net.history)
    network = SkorchNetwork(net)
    estimator.checkpoint = Checkpoint.capture(network, n_steps, optimizers_of(net))
    return estimator


def _parts(estimator: SkestEstimator) -> tuple[EstimatorSpec, Any, TargetScale | None]:
    """Return model, head and scale of the target of a fitted estimator."""
    if not isinstance(estimator, SkestEstimator):
        raise TypeError(
            "'estimator' must be one of skest's scikit-learn estimators; got "
            f"{type(estimator).__name__}."
        )
    check_is_fitted(estimator)
    fitted = estimator._as_fitted()
    if isinstance(fitted, SkestModelFn):
        raise ValueError(
            "to_skorch and skorch_features take estimators whose network skest builds; "
            f"that of {type(estimator).__name__} is built by 'model_fn' from a batch of "
            "data. Give its module to a skorch net yourself."
        )
    head = fitted._target.head(None)
    # The canned models need no batch to read shapes from: their columns know them.
    spec = fitted._model_fn(head)({}, None, ModeKeys.PREDICT)
    return spec, head, fitted._scale


def _answer(logits: Tensor, head: SingleTaskHead, key: str) -> Tensor:
    return head.predictions(logits)[key]


class _KeywordNetwork(nn.Module):
    """Takes a dictionary of features as keywords, and gives logits of ``y`` itself."""

    def __init__(self, network: nn.Module, scale: TargetScale | None) -> None:
        super().__init__()
        self.network = network
        _register(self, scale)

    def forward(self, **features: Any) -> Tensor:
        # skorch gives a module a dictionary as keywords; the network takes it as one.
        logits = self.network(features)
        scale, center, low, high = (self.get_buffer(n).to(logits) for n in _SCALE)
        logits = logits * scale + center
        return logits if self.training else torch.clamp(logits, low, high)


class _HeadLoss(nn.Module):
    """The loss of a head as a criterion, in the scale that the estimator learned in."""

    def __init__(self, head: SingleTaskHead, scale: TargetScale | None) -> None:
        super().__init__()
        self.head = head
        self._is_scaled = scale is not None and not scale.is_linked.all()
        _register(self, scale)

    def forward(self, logits: Tensor, y: Tensor) -> Tensor:
        if self._is_scaled:
            scale, center = (self.get_buffer(n).to(logits) for n in ("scale", "center"))
            # skorch's y has one dimension where it has one number, the logits always
            # two.
            y = y.reshape(logits.shape[-2:]).to(logits)
            logits, y = ((value - center) / scale for value in (logits, y))
        # Of several members each learns from errors of its own, as in the estimator.
        if logits.ndim > 2:
            return member_loss(self.head, y, logits, None)
        return self.head.loss(y, logits)


class _Rows(Dataset):
    """A dataset of skorch whose features may be nested dictionaries."""

    def __init__(self, X: Any, y: Any = None, length: int | None = None) -> None:
        super().__init__(X, y, length)
        # skorch's own knows nothing of dictionaries in dictionaries, as wide & deep has
        # them.
        self.X_indexing = take_rows


_SCALE = ("scale", "center", "low", "high")


def _register(module: nn.Module, scale: TargetScale | None) -> None:
    """Give a module the buffers `center`, `scale`, `low` and `high`."""
    scale = TargetScale.none(1) if scale is None else scale
    for name in _SCALE:
        values = torch.as_tensor(getattr(scale, name), dtype=torch.float64)
        module.register_buffer(name, values)


def skorch_model_fn(net: NeuralNet) -> Callable[..., EstimatorSpec]:
    """Return a model function that builds what a skorch net describes.

    Module, criterion, optimizer and their parameters are those of the net, and so are
    what its class makes of them: `infer`, `get_loss`, `predict_proba` and the like. What
    belongs to skorch's own loop (``max_epochs``, ``batch_size``, ``iterator_train``,
    ``train_split``, ``callbacks``, ``device``) has no effect; callbacks go into the hooks
    as `SkorchCallbackHook`.

    Parameters
    ----------
    net : skorch.NeuralNet
        Initialized or not; a copy without its state is kept. A module that is given as
        an object, not as a class, is where every training from step 0 begins.

    Returns
    -------
    callable
        ``model_fn(features, labels, mode, params)`` for `skest.Estimator`, and for
        `ModelFnClassifier` and `ModelFnRegressor`. `params` are parameters of the net,
        such as ``{"lr": 0.1, "module__num_units": 20}``; what those estimators add to
        them ("head", "n_classes" and so on) is left out, unless the net has such a
        parameter. It predicts "probabilities" and "class_ids" if the net is a
        classifier, and otherwise "predictions".

    Raises
    ------
    TypeError
        If `net` is no `skorch.NeuralNet`.
    ValueError
        From the model function: if a `NeuralNetRegressor` gets a flat y.

    Notes
    -----
    Features and labels reach the net as skorch would pass them, so a dictionary becomes
    keyword arguments of the module. Variables are called ``module.weight``,
    ``criterion.weight`` and so on. Optimizers that need a closure (LBFGS) can't be used.

    Examples
    --------
    >>> import numpy as np
    >>> import torch
    >>> from skorch import NeuralNetRegressor
    >>> import skest
    >>> from skest.adapters.skorch import skorch_model_fn
    >>> net = NeuralNetRegressor(torch.nn.Linear, module__in_features=1, lr=0.5)
    >>> model_fn = skorch_model_fn(net.set_params(module__out_features=1))
    >>> X = np.linspace(-1, 1, 20, dtype=np.float32).reshape(-1, 1)
    >>> input_fn = skest.inputs.numpy_input_fn(X, 3 * X, num_epochs=200, shuffle=True)
    >>> estimator = skest.Estimator(model_fn).train(input_fn)
    >>> print(estimator.get_variable_value("module.weight").round(3))
    [[3.]]
    """
    if not isinstance(net, NeuralNet):
        raise TypeError(f"'net' must be a skorch.NeuralNet; got {type(net).__name__}.")
    # A copy without its state: what becomes of the caller's net must not change this
    # model.
    return partial(_model_fn, net=clone(net))


def _model_fn(
    features: Any,
    labels: Any,
    mode: str,
    params: dict[str, Any] | None = None,
    *,
    net: NeuralNet,
) -> EstimatorSpec:
    built = clone(net)
    # What skest tells of y is for nets that have a parameter for it; the user's own
    # entries must all be known.
    unknown = GIVEN_PARAMS - built.get_params(deep=False).keys()
    own = {key: value for key, value in (params or {}).items() if key not in unknown}
    # Without a device skorch leaves tensors where they are.
    built.set_params(**own, device=None, verbose=0)
    # Those are for skorch's loop, and would be told of no training.
    built.set_params(callbacks="disable").initialize()
    if isinstance(built, NeuralNetRegressor) and labels is not None:
        _check_numbers(labels)
    network = SkorchNetwork(built)
    return EstimatorSpec(
        mode,
        network=network,
        loss=network.loss,
        predictions=network.predictions,
        optimizer=optimizers_of(built),
    )


def _check_numbers(labels: Any) -> None:
    """Refuse a flat y, as skorch does: losses would broadcast it to all pairs of rows."""
    shape = np.shape(labels)
    if len(shape) == 1:
        raise ValueError(
            "A NeuralNetRegressor needs y of shape (n_samples, n_outputs); got labels of "
            f"shape {shape}. Pass y.reshape(-1, 1) for a single target."
        )


class SkorchNetwork(nn.Module):
    """The modules of an initialized net, run as its class says.

    Parameters
    ----------
    net : skorch.NeuralNet
        Its modules, criteria among them, become children under their names.
    """

    def __init__(self, net: NeuralNet) -> None:
        super().__init__()
        for name, part in vars(net).items():
            # What `initialize` made ("module_", "criterion_", …): it is trained and
            # saved.
            if name.endswith("_") and isinstance(part, nn.Module):
                self.add_module(name.removesuffix("_"), part)
        # Not a module, and so none of its children: their variables are here once.
        self._net = net

    def forward(self, features: Any) -> Any:
        """Return what the net infers from a batch."""
        return self._net.infer(features)

    def loss(self, labels: Any, logits: Any, features: Any) -> Tensor:
        """Return the loss that the net takes."""
        return self._net.get_loss(
            logits, labels, X=features, training=torch.is_grad_enabled()
        )

    def predictions(self, logits: Any) -> dict[str, Any]:
        """Return what the net predicts where its module gives `logits`."""
        # skorch's own way to predict from outputs that are there already.
        self._net.forward_iter = lambda *args, **kwargs: iter([logits])
        if not is_classifier(self._net):
            return {PredictionKeys.PREDICTIONS: self._net.predict(None)}
        class_ids = self._net.predict(None).astype("int64")
        return {
            PredictionKeys.PROBABILITIES: self._net.predict_proba(None),
            PredictionKeys.CLASS_IDS: class_ids.reshape(len(class_ids), -1),
        }


def optimizers_of(net: NeuralNet) -> list[Optimizer]:
    """Return the optimizers of an initialized net."""
    return [part for part in vars(net).values() if isinstance(part, Optimizer)]
