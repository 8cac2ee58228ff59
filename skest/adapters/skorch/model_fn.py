# SPDX-License-Identifier: Apache-2.0
"""`skorch_model_fn`: a skorch net as a model function."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from sklearn.base import clone, is_classifier
from skorch import NeuralNet, NeuralNetRegressor
from torch import Tensor, nn
from torch.optim import Optimizer

from skest.adapters.user_model import GIVEN_PARAMS
from skest.keys import PredictionKeys
from skest.spec import EstimatorSpec

__all__ = ["SkorchNetwork", "optimizers_of", "skorch_model_fn"]


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
    unknown = GIVEN_PARAMS - built.get_params(deep=False).keys()
    own = {key: value for key, value in (params or {}).items() if key not in unknown}
    # Without a device skorch leaves tensors where they are.
    built.set_params(**own, device=None, verbose=0)
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
            if name.endswith("_") and isinstance(part, nn.Module):
                self.add_module(name.removesuffix("_"), part)
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
