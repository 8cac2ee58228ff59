# SPDX-License-Identifier: Apache-2.0
"""Arguments that users of other libraries try: the error says what to write instead.

``docs/migration.md`` has the names of tf.estimator.
"""

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Self, TypeVar

_F = TypeVar("_F", bound=Callable[..., Any])


def former_arguments(**former: str) -> Callable[[_F], _F]:
    """Return a decorator: a function says what became of arguments of its namesake.

    Parameters
    ----------
    **former : str
        What to do instead, by the name of the argument.

    Examples
    --------
    >>> from skest.core.former_arguments import former_arguments
    >>> @former_arguments(normalizer_fn="use 'normalizer'")
    ... def column(key, normalizer=None):
    ...     return key
    >>> column("age", normalizer_fn=abs)
    Traceback (most recent call last):
        ...
    TypeError: column has no argument 'normalizer_fn'; use 'normalizer'.
    """

    def decorate(function: _F) -> _F:
        @functools.wraps(function)
        def checked(*args: Any, **kwargs: Any) -> Any:
            _refuse(function.__name__, kwargs, former)
            return function(*args, **kwargs)

        return checked  # type: ignore[return-value]

    return decorate


class FormerArguments:
    """A base of classes that say what became of arguments of their namesakes."""

    _former_arguments: ClassVar[Mapping[str, str]] = {}

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """Refuse arguments that are not there any more, unless a subclass has them."""
        former = cls._former_arguments
        if former.keys() & kwargs:
            own = inspect.signature(cls.__init__).parameters
            if all(own[name].kind is not inspect.Parameter.VAR_KEYWORD for name in own):
                given = {name: None for name in kwargs if name not in own}
                _refuse(cls.__name__, given, former)
        return super().__new__(cls)


def _refuse(called: str, given: Mapping[str, Any], former: Mapping[str, str]) -> None:
    for name in given:
        if name in former:
            raise TypeError(f"{called} has no argument {name!r}; {former[name]}.")
