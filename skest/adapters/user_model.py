# SPDX-License-Identifier: Apache-2.0
"""`UserModel`: a user's model function between ``X, y`` and the core."""

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from skest.adapters.features import WEIGHT_KEY
from skest.config.run_config import RunConfig
from skest.core.random import draws_from_global_generator
from skest.engine.evaluation import update_metrics
from skest.engine.model import ModelFn, model_fn_arguments
from skest.feature_columns.columns import FeatureColumns
from skest.heads.base import Head, RegularizedHead
from skest.heads.single_task import SingleTaskHead
from skest.keys import ModeKeys, PredictionKeys
from skest.optimizers.state import follow_parameters
from skest.spec import EstimatorSpec

#: Key of features that are no dictionary for the user.
BARE_KEY = "__features__"
#: What ``params`` of the user's function may get beside the user's own entries.
GIVEN_PARAMS = frozenset({"head", "n_classes", "n_outputs", "feature_columns"})


@dataclass(eq=False)
class UserModel:
    """A model function for `skest.Estimator`, made of one of a user's.

    The user's sees features without the sample weights, which an estimator for ``X, y``
    keeps beside them, and an array as an array. What it returns is changed so that the
    weights reach the loss, and predictions follow from one another.

    Parameters
    ----------
    model_fn : callable
        As for `skest.Estimator`.
    params : dict or None
        Hyperparameters; copied here and for every call.
    given : dict
        What ``params`` gets beside them, under names of `GIVEN_PARAMS`; entries of
        `params` go before.
    columns : FeatureColumns or None
        Encode the features that the user's function sees.
    derive : callable
        From the predictions of the user's function to those that follow from them: one of
        the functions below.
    dtype : torch.dtype
        Floating type of the network.
    """

    model_fn: Callable[..., EstimatorSpec]
    params: dict[str, Any] | None
    given: Mapping[str, Any]
    columns: FeatureColumns | None
    derive: Callable[[Mapping[str, Any]], dict[str, Tensor]]
    dtype: torch.dtype

    def __post_init__(self) -> None:
        # As in tf.estimator.Estimator: what model_fn does to its params, no later call
        # sees.
        self.params = copy.deepcopy(self.params)

    def __call__(
        self, features: Any, labels: Any, mode: str, config: RunConfig
    ) -> EstimatorSpec:
        """Describe the model."""
        spec = self._call(self._encoded(_given(features)), labels, mode, config)
        if spec.network is not None:
            _prepare(spec.network, self.dtype)
        for optimizer in spec.optimizers:
            # The cast gave variables another type than slots that the optimizer has
            # made at once, as Adagrad's.
            follow_parameters(optimizer)
        # To predict, there is neither a loss nor a metric.
        if mode != ModeKeys.PREDICT:
            spec = _weighing(spec, WEIGHT_KEY in features)
        is_plain = spec.encode is None and self.columns is None
        return replace(
            spec,
            encode=None if is_plain else partial(self._encode, spec.encode),
            predictions=self._predictions(spec),
        )

    def itself(self, features: Any, config: RunConfig) -> EstimatorSpec:
        """Return what the user's function says of mode PREDICT, for features as it knows.

        Only the predictions are completed, and the floating type is that of the run.
        """
        spec = self._call(self._encoded(features), None, ModeKeys.PREDICT, config)
        network: Any = spec.network
        network.to(self.dtype)
        encode = spec.encode
        if self.columns is not None:
            encode = partial(self.columns.encode, dtype=self.dtype)
        return replace(spec, encode=encode, predictions=self._predictions(spec))

    def _predictions(self, spec: EstimatorSpec) -> Callable[..., Mapping[str, Any]]:
        own: Any = spec.predictions
        # Those of a head are complete, and know which of them are asked for.
        is_whole = isinstance(_owner(own), Head)
        return own if is_whole else partial(_completed, own, self.derive)

    def _call(
        self, features: Any, labels: Any, mode: str, config: RunConfig
    ) -> EstimatorSpec:
        function = self.model_fn
        # Only who names them gets them, as in tf.estimator.
        if "params" in model_fn_arguments(function, self.params):
            # Not by ModelFn, which would copy what is given as well.
            params = {**self.given, **copy.deepcopy(self.params or {})}
            function = partial(function, params=params)
        spec = ModelFn(function, None)(features, labels, mode, config)
        if spec.encode is not None and self.columns is not None:
            raise ValueError(
                "'feature_columns' encode the features, but model_fn returns 'encode' as "
                "well. Leave one of them out."
            )
        return spec

    def _encoded(self, features: Any) -> Any:
        if self.columns is None:
            return features
        return self.columns.encode(features, self.dtype)

    def _encode(
        self, own: Callable[[Any], Any] | None, features: Mapping[Any, Any]
    ) -> dict[Any, Any]:
        """Encode features, which are a table in memory, beside their weights."""
        encoded = (own or self._encoded)(_given(features))
        # Weights are beside the features, which needs a dictionary; `_given` takes it
        # away.
        if not isinstance(encoded, Mapping):
            encoded = {BARE_KEY: encoded}
        # The network was cast to this type; a user's encode may know only float32.
        encoded = {key: self._cast(value) for key, value in encoded.items()}
        if WEIGHT_KEY in features:
            encoded[WEIGHT_KEY] = torch.as_tensor(features[WEIGHT_KEY])
        return encoded

    def _cast(self, value: Any) -> Any:
        is_float = isinstance(value, Tensor) and value.is_floating_point()
        return value.to(self.dtype) if is_float else value


class _RowLoss:
    """A loss of the user's, which may return one number or one for each row."""

    def __init__(self, own: Callable[[Any, Any, Any], Tensor]) -> None:
        self._own = own
        self.may_draw = draws_from_global_generator(nn.Identity(), own)

    def __call__(self, labels: Any, logits: Any, features: Any) -> Tensor:
        losses = self._own(labels, logits, _given(features))
        weight = features.get(WEIGHT_KEY)
        if not isinstance(losses, Tensor):
            return losses  # the core says what is wrong
        if losses.ndim == 0:
            if weight is None:
                return losses
            raise ValueError(
                "The loss of model_fn returns one number for a batch, which "
                "'sample_weight' and 'class_weight' cannot weigh. Return the losses of "
                'the rows, for example with reduction="none", or use a head, as '
                "params['head'].create_estimator_spec(...)."
            )
        _check_rows(losses, labels)
        losses = losses.flatten(1).mean(1) if losses.ndim > 1 else losses
        # The weights have mean 1 over the table, so this is unbiased for Σwl / Σw.
        return (losses if weight is None else losses * weight.to(losses)).mean()


def _weighing(spec: EstimatorSpec, is_weighted: bool) -> EstimatorSpec:
    """Let the weights of the rows reach the loss, and features look as given."""
    # A bound method tells whose it is; a function around it hides its head, and is a
    # loss of rows.
    head = _owner(spec.loss)
    # A head of skest can weigh both its loss and its metrics.
    if is_weighted and isinstance(getattr(head, "head", head), SingleTaskHead):
        return _with_weighted_head(spec, head)

    def update(metrics: Any, labels: Any, logits: Any, features: Any) -> None:
        update_metrics(spec, metrics, labels, logits, _given(features))

    loss = _RowLoss(spec.loss)  # type: ignore[arg-type]
    return replace(spec, loss=loss, update_metrics=update)


def _with_weighted_head(
    spec: EstimatorSpec, head: SingleTaskHead | RegularizedHead
) -> EstimatorSpec:
    if head.weight_column is not None:
        raise ValueError(
            f"There are sample weights, but {head!r} of model_fn reads weights from a "
            "column. Give weights in one way only."
        )
    weighted = head.adapted(weight_column=WEIGHT_KEY)
    update = spec.update_metrics
    if _owner(update) is head:
        update = weighted.update_metrics
    return replace(spec, loss=weighted.compute_loss, update_metrics=update)


def _prepare(network: nn.Module, dtype: torch.dtype) -> None:
    """Cast a network, and let it take features with the weights beside them."""
    if _take_given in network._forward_pre_hooks.values():
        raise ValueError(
            "model_fn returned the network of an earlier call, which would go on where "
            "another fit left it. Make it inside model_fn; a trained part of it can be in "
            "'params', of which every call gets a copy."
        )
    network.to(dtype)
    # A hook and no module around it, whose name would be in those of all variables.
    network.register_forward_pre_hook(_take_given)


def _take_given(network: nn.Module, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    return (_given(arguments[0]), *arguments[1:])


def _given(features: Mapping[Any, Any]) -> Any:
    """Return features, raw or encoded, as the user knows them."""
    if BARE_KEY in features:
        return features[BARE_KEY]
    return {key: value for key, value in features.items() if key != WEIGHT_KEY}


def _owner(method: Any) -> Any:
    """Return the object that a method is bound to, or None."""
    return getattr(method, "__self__", None)


def _check_rows(losses: Tensor, labels: Any) -> None:
    """Refuse losses of rows that come from broadcasting labels with logits."""
    if not isinstance(labels, Tensor):
        return
    # Labels (n,) and logits (n, 1) broadcast to (n, n), and the mean of that is a
    # number as any.
    allowed = {(len(labels),), (len(labels), 1), tuple(labels.shape)}
    if tuple(losses.shape) not in allowed:
        raise ValueError(
            f"The loss of model_fn must return one number, or the losses of "
            f"{len(labels)} rows of shape {' or '.join(map(str, sorted(allowed)))}; got "
            f"{tuple(losses.shape)}. Have the logits the shape of the labels, "
            f"{tuple(labels.shape)}?"
        )


_LOGITS, _LOGISTIC = PredictionKeys.LOGITS, PredictionKeys.LOGISTIC
_PROBABILITIES = PredictionKeys.PROBABILITIES
_CLASS_IDS = PredictionKeys.CLASS_IDS
_NUMBERS = PredictionKeys.PREDICTIONS


def _completed(
    predictions: Callable[[Any], Mapping[str, Any]] | None,
    derive: Callable[[Mapping[str, Any]], dict[str, Tensor]],
    logits: Any,
    keys: Sequence[str] | None = None,
) -> dict[str, Any]:
    """Return all predictions; an error says if one of `keys` does not follow."""
    if predictions is None:
        raise ValueError(
            "Early stopping scores the network while it is trained, but model_fn "
            "returns no 'predictions' in mode 'train'. Return them in all modes."
        )
    own = predictions(logits)
    if not isinstance(own, Mapping):
        raise TypeError(
            f"'predictions' of model_fn must return a dictionary; got {type(own).__name__}."
        )
    found = {**own, **derive(own)}
    missing = [key for key in keys or () if key not in found]
    if missing:
        raise ValueError(
            f"{' and '.join(map(repr, missing))} cannot be told from the predictions "
            f"of model_fn, which are {', '.join(map(repr, own)) or 'none'}. For "
            f"classes and labels, return {_LOGITS!r} or {_PROBABILITIES!r}; for "
            f"numbers, {_NUMBERS!r}."
        )
    return found


def class_predictions(own: Mapping[str, Any], n_classes: int) -> dict[str, Tensor]:
    """Return class ids, probabilities and logits, as far as they follow.

    Parameters
    ----------
    own : dict
        It may have "logits" of shape (n, n_classes), "probabilities" of this shape and
        "class_ids" of shape (n,) or (n, 1). For two classes, logits and probabilities may
        also be those of the second class, of shape (n,) or (n, 1), and the latter be
        called "logistic".
    n_classes : int
        At least 2.

    Returns
    -------
    dict of Tensor
        "logits" of shape (n, n_classes), or (n, 1) for two classes; "probabilities" of
        shape (n, n_classes); "class_ids" of shape (n, 1).

    Raises
    ------
    ValueError
        If a shape is wrong.
    """
    widths = {n_classes} if n_classes > 2 else {1, 2}
    ids = _matrix(own, _CLASS_IDS, {1}) if _CLASS_IDS in own else None
    logits = _matrix(own, _LOGITS, widths) if _LOGITS in own else None
    probabilities = _given_probabilities(own, widths)
    if probabilities is None:
        if logits is None:
            return {} if ids is None else {_CLASS_IDS: ids}
        probabilities = _from_logits(logits)
    if logits is None:
        # The softmax of logarithms of probabilities gives these back.
        logits = probabilities.log()
    if logits.shape[1] == 2:
        # One logit is what binary targets are scored by: the softmax of two is the
        # sigmoid of their difference.
        logits = logits[:, 1:] - logits[:, :1]
    if ids is None:
        # Not from the probabilities, which round a small logit to a tie.
        is_single = logits.shape[1] == 1
        ids = (logits > 0).long() if is_single else logits.argmax(1, keepdim=True)
    return {_LOGITS: logits, _PROBABILITIES: probabilities, _CLASS_IDS: ids}


def _given_probabilities(own: Mapping[str, Any], widths: set[int]) -> Tensor | None:
    for key in (_PROBABILITIES, _LOGISTIC):
        if key in own:
            found = _matrix(own, key, widths)
            return torch.cat([1 - found, found], 1) if found.shape[1] == 1 else found
    return None


def _from_logits(logits: Tensor) -> Tensor:
    if logits.shape[1] == 1:
        return torch.cat([(-logits).sigmoid(), logits.sigmoid()], dim=1)
    return logits.softmax(dim=1)


def label_predictions(own: Mapping[str, Any], n_classes: int) -> dict[str, Tensor]:
    """Return "probabilities" and "logits" of labels, each from the other if need be.

    Parameters
    ----------
    own : dict
        It may have either, of shape (n, n_classes).
    n_classes : int
        Number of labels.

    Raises
    ------
    ValueError
        If a shape is wrong.
    """
    found = {
        key: _matrix(own, key, {n_classes})
        for key in (_LOGITS, _PROBABILITIES)
        if key in own
    }
    if _LOGITS in found:
        found.setdefault(_PROBABILITIES, found[_LOGITS].sigmoid())
    elif _PROBABILITIES in found:
        found[_LOGITS] = found[_PROBABILITIES].logit()
    return found


def number_predictions(own: Mapping[str, Any], n_outputs: int) -> dict[str, Tensor]:
    """Return "predictions" of shape (n, n_outputs); a single one may come as (n,).

    Raises
    ------
    ValueError
        If the shape is wrong.
    """
    return {_NUMBERS: _matrix(own, _NUMBERS, {n_outputs})} if _NUMBERS in own else {}


def _matrix(own: Mapping[str, Any], key: str, widths: set[int]) -> Tensor:
    """Return a prediction as (n, width); one column may come as (n,)."""
    value = torch.as_tensor(own[key])
    matrix = value.unsqueeze(1) if value.ndim == 1 else value
    if matrix.ndim != 2 or matrix.shape[1] not in widths:
        shapes = " or ".join(f"(n_samples, {width})" for width in sorted(widths))
        raise ValueError(
            f"The prediction {key!r} of model_fn must have shape {shapes}, as y says; "
            f"got {tuple(value.shape)}."
        )
    return matrix
