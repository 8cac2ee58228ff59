# SPDX-License-Identifier: Apache-2.0
"""`ModelFnClassifier`, `ModelFnRegressor`: a model of your own as an estimator."""

from abc import abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar, Self

import numpy as np
from sklearn.utils import assert_all_finite
from torch import Tensor

from skest.adapters import allowed, user_model
from skest.adapters.base import SkestEstimator
from skest.adapters.features import ARRAY_KEY, is_table
from skest.adapters.parameters import TrainingParameters, parameter, with_parameters
from skest.adapters.predictors import SkestClassifier, SkestRegressor
from skest.adapters.targets.base import TargetScale
from skest.adapters.targets.classes import LabelsTarget
from skest.adapters.targets.numbers import NumberTarget
from skest.engine.model import model_fn_arguments
from skest.feature_columns.columns import FeatureColumns
from skest.feature_columns.table import TableColumns
from skest.keys import PredictionKeys
from skest.spec import EstimatorSpec

_PARAMS = "params__"


@with_parameters
class ModelFnParameters(TrainingParameters):
    """A model function, and what it is given.

    Parameters
    ----------
    model_fn : callable
        ``model_fn(features, labels, mode, params, config) -> EstimatorSpec``, as for
        `skest.Estimator`: it builds a network and an optimizer, and says what the loss and
        the predictions are. Only ``features`` and ``mode`` are mandatory. `features` and
        `labels` are the first batch, to read shapes off; features are an array if X is an
        array, else a dictionary of columns, as they are. The default of None is there
        because scikit-learn constructs estimators without arguments; ``fit`` refuses it.

        Sample weights and `class_weight` reach the loss by themselves if the
        specification comes from a head, or if the loss returns one number for each row;
        a loss that returns one number for the batch is an error then.
    params : dict
        Hyperparameters for `model_fn`. A search reaches its entries as ``params__<key>``.
        What `model_fn` gets is a copy, with these entries unless `params` has them:
        "head", a head for `y`, whose ``create_estimator_spec`` completes a network and
        an optimizer; "n_classes" or "n_outputs", the number of classes or of columns of
        `y`; and with `feature_columns`, "feature_columns", the fitted ones.
    feature_columns : FeatureColumns or list of columns
        With them, features are dictionaries of encoded columns, which
        ``DenseFeatures(params["feature_columns"])`` of `skest.feature_columns` takes;
        embeddings have sparse gradients, as `skest.optimizers.make_optimizer` expects.
        Nothing is inferred: None leaves the features raw. An array must be finite
        then; columns of a table are for the ``encode`` of `model_fn`, and without it
        become tensors where they are numbers.
    """

    model_fn: Callable[..., EstimatorSpec] | None = parameter(
        default=None, kw_only=False, values=[callable, None]
    )
    params: dict[str, Any] | None = parameter(default=None, values=[dict, None])
    feature_columns: Any = parameter(default=None, values=allowed.COLUMNS)


class SkestModelFn(ModelFnParameters, SkestEstimator):
    """What the estimators with a model function of the user's share; not for direct use."""

    feature_columns_: FeatureColumns | None

    _column_parameters: ClassVar[dict[str, str]] = {"feature_columns": "dense"}

    @abstractmethod
    def _of_y(self) -> tuple[dict[str, int], Callable[..., dict[str, Tensor]]]:
        """Return what ``params`` tells about `y`, and what completes predictions."""

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the parameters of this estimator.

        Parameters
        ----------
        deep : bool, default=True
            Return also those of `feature_columns`, and the entries of `params` as
            ``params__<key>``.

        Returns
        -------
        dict
            Parameters by name.
        """
        found: dict[str, Any] = super().get_params(deep)
        # So a search reaches `params__lr`, for which scikit-learn asks get_params.
        if deep and isinstance(self.params, dict):
            found |= {f"{_PARAMS}{key}": value for key, value in self.params.items()}
        return found

    def set_params(self, **params: Any) -> Self:
        """Set parameters of this estimator.

        Parameters
        ----------
        **params
            Parameters by name; ``params__<key>`` is an entry of `params`, which is not
            changed but replaced.

        Returns
        -------
        object
            This estimator.
        """
        # BaseEstimator would look for a parameter `params` with parameters of its own.
        own = {key: params.pop(key) for key in list(params) if key.startswith(_PARAMS)}
        super().set_params(**params)
        if own:
            entries = {key.removeprefix(_PARAMS): own[key] for key in own}
            self.params = {**(self.params or {}), **entries}
        return self

    def _validate_params(self) -> None:
        super()._validate_params()
        if self.model_fn is None:
            raise ValueError(
                f"'model_fn' of {type(self).__name__} must be given; got None. Pass a "
                "function model_fn(features, labels, mode, params) that returns a "
                "skest.EstimatorSpec."
            )
        model_fn_arguments(self.model_fn, self.params)

    def _model_fn(self, head: Any) -> user_model.UserModel:
        size, derive = self._of_y()
        # Without a weight column: what a user's function makes of it is made to weigh
        # later.
        given = {"head": self._target.head(None), **size}
        if self.feature_columns_ is not None:
            given["feature_columns"] = self.feature_columns_
        return user_model.UserModel(
            self.model_fn,  # type: ignore[arg-type]
            self.params,
            given,
            self.feature_columns_,
            partial(derive, **size),
            self._torch_dtype,
        )

    def _all_inferred(self) -> bool:
        return False  # without columns, features stay raw

    def _takes_sparse(self) -> bool:
        return self.feature_columns is not None and super()._takes_sparse()

    def _takes_as_array(self, X: Any) -> bool:
        return self.feature_columns is None and not is_table(X)

    def _check_features(self, X: Any, *, reset: bool) -> TableColumns:
        features = super()._check_features(X, reset=reset)
        if not self._reads_array:
            return features
        owner = type(self).__name__
        # Nothing encodes a bare array, so nobody else would look.
        assert_all_finite(features[ARRAY_KEY], estimator_name=owner, input_name="X")
        return TableColumns({user_model.BARE_KEY: features[ARRAY_KEY]})


@with_parameters
class ModelFnClassifier(SkestModelFn, SkestClassifier):
    """A classifier made of a model function of your own.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        Class labels, sorted.
    feature_columns_ : FeatureColumns or None
        The fitted columns.
    <fitted>

    See Also
    --------
    DNNEstimator : A perceptron with a head of your choice.
    Estimator : Runs model functions on data from input functions.

    Notes
    -----
    `labels` are the positions of the classes in `classes_`, int64 of shape (n_samples,);
    those of several labels per row indicators, uint8 of shape (n_samples, n_labels).
    ``params["n_classes"]`` is the number of classes or labels, and ``params["head"]`` a
    `BinaryClassHead`, `MultiClassHead` or `MultiLabelHead`.

    ``predictions`` must have "logits" or "probabilities"; one follows from the other, and
    "class_ids" from both. Of two classes, logits may have the shape (n_samples,),
    (n_samples, 1) or (n_samples, 2). The predictions of a head have all of them.

    As ``tf.estimator.Estimator(model_fn, params=params)``, whose guides gave
    ``params["n_classes"]`` and ``params["feature_columns"]`` by hand.

    Examples
    --------
    >>> import numpy as np, torch
    >>> from torch import nn
    >>> from skest import EstimatorSpec, ModelFnClassifier
    >>> def model_fn(features, labels, mode, params):
    ...     network = nn.Sequential(
    ...         nn.Linear(features.shape[1], params["units"]),
    ...         nn.Tanh(),
    ...         nn.Linear(params["units"], params["n_classes"]),
    ...     )
    ...     return EstimatorSpec(
    ...         mode,
    ...         network=network,
    ...         loss=lambda y, z, x: nn.functional.cross_entropy(z, y, reduction="none"),
    ...         predictions=lambda z: {"logits": z},
    ...         optimizer=torch.optim.Adam(network.parameters(), lr=params["lr"]),
    ...     )
    >>> X = np.linspace(-1, 1, 90).reshape(-1, 1)
    >>> y = np.repeat(["low", "mid", "high"], 30)
    >>> params = {"units": 8, "lr": 0.1}
    >>> model = ModelFnClassifier(model_fn, params=params, random_state=0).fit(X, y)
    >>> model.predict([[-0.8], [0.0], [0.8]]).tolist()
    ['low', 'mid', 'high']
    >>> model.set_params(params__lr=0.01).params
    {'units': 8, 'lr': 0.01}
    """

    def _predict(self, X: Any, keys: Any = None) -> Any:
        found = super()._predict(X, keys)
        if PredictionKeys.PROBABILITIES in found:
            is_labels = isinstance(self._target, LabelsTarget)
            _check_probabilities(found[PredictionKeys.PROBABILITIES], is_labels)
        return found

    def _of_y(self) -> tuple[dict[str, int], Callable[..., dict[str, Tensor]]]:
        is_labels = isinstance(self._target, LabelsTarget)
        derive = (
            user_model.label_predictions if is_labels else user_model.class_predictions
        )
        return {"n_classes": len(self.classes_)}, derive


def _check_probabilities(found: np.ndarray, is_labels: bool) -> None:
    """Refuse what the user's network calls probabilities, such as logarithms of them."""
    sums = 1 if is_labels else found.sum(axis=1)
    # Of 1.0, bfloat16 knows no neighbour that is nearer than .4 %.
    if np.any(found < 0) or np.any(found > 1.02) or np.any(abs(sums - 1) > 0.02):
        raise ValueError(
            "'probabilities' of model_fn must be between 0 and 1"
            f"{'' if is_labels else ' and have the sum 1 in each row'}; got "
            f"{found.min():.3g} to {found.max():.3g}. Return 'logits' instead."
        )


class _RawNumberTarget(NumberTarget):
    """Numbers in the units of `y`: what the user's network learns is the user's."""

    def scale(self, labels: Any, weight: Any) -> TargetScale | None:  # type: ignore[override]
        """Return None."""
        return None


@with_parameters
class ModelFnRegressor(SkestModelFn, SkestRegressor):
    """A regressor made of a model function of your own.

    Attributes
    ----------
    feature_columns_ : FeatureColumns or None
        The fitted columns.
    <fitted>

    See Also
    --------
    DNNEstimator : A perceptron with a head of your choice.
    Estimator : Runs model functions on data from input functions.

    Notes
    -----
    `labels` have the shape of `y`, and its units: unlike `DNNRegressor`, this estimator
    does not standardise them; `sklearn.compose.TransformedTargetRegressor` does.
    ``params["n_outputs"]`` is the number of columns of `y`, and ``params["head"]`` a
    `RegressionHead`.

    ``predictions`` must have "predictions" of shape (n_samples, n_outputs), or (n_samples,)
    for one output. Early stopping goes by R².

    As ``tf.estimator.Estimator(model_fn, params=params)``.

    Examples
    --------
    >>> import numpy as np, torch
    >>> from skest import ModelFnRegressor
    >>> def model_fn(features, labels, mode, params):
    ...     network = torch.nn.Linear(features.shape[1], params["n_outputs"])
    ...     optimizer = torch.optim.SGD(network.parameters(), lr=params["lr"])
    ...     return params["head"].create_estimator_spec(
    ...         features, mode, network, labels=labels, optimizer=optimizer
    ...     )
    >>> X = np.linspace(-1, 1, 100).reshape(-1, 1)
    >>> model = ModelFnRegressor(model_fn, params={"lr": 0.5}, random_state=0)
    >>> model.fit(X, 2 * X[:, 0] + 1).predict([[0.0], [1.0]]).round(1)
    array([1., 3.])
    """

    # Of the score that early stopping goes by; what is minimised, model_fn says.
    loss = "squared_error"
    quantile = 0.5

    def _new_target(self, y: Any) -> NumberTarget:
        return _RawNumberTarget(type(self).__name__)

    def _of_y(self) -> tuple[dict[str, int], Callable[..., dict[str, Tensor]]]:
        return {"n_outputs": self._target.n_outputs}, user_model.number_predictions
