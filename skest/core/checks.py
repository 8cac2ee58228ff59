# SPDX-License-Identifier: Apache-2.0
"""Checks of arguments that several parts of skest share, and warnings about them.

The names that tf.estimator gave to arguments are refused with what to write instead.
"""

import argparse
import contextlib
import functools
import inspect
import operator
import sys
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextvars import ContextVar
from pathlib import Path
from typing import Any, ClassVar, NoReturn, Self, TypeAlias, TypeVar

import numpy as np

_REAL = int | float | np.integer | np.floating


def check_integer(
    value: Any, name: str, owner: str, minimum: int, maximum: int | None = None
) -> None:
    """Raise unless `value` is an integer in a range.

    Parameters
    ----------
    value : object
        What the user gave.
    name : str
        Name of the parameter.
    owner : str
        Whose parameter it is, as it should read in the message.
    minimum, maximum : int
        The smallest and the largest allowed value; None is no limit.

    Raises
    ------
    TypeError
        If `value` is no integer; True and False are none.
    ValueError
        If it is out of range.

    Examples
    --------
    >>> check_integer(0, "dimension", "column 'c'", 1)
    Traceback (most recent call last):
        ...
    ValueError: 'dimension' of column 'c' must be an integer of at least 1; got 0.
    """
    # True is an int to Python, and "batch_size=True" a mistake.
    if isinstance(value, int | np.integer) and not isinstance(value, bool):
        if minimum <= value and (maximum is None or value <= maximum):
            return
        error: type[Exception] = ValueError
    else:
        error = TypeError
    allowed = f"of at least {minimum}"
    if maximum is not None:
        allowed = f"from {minimum} to {maximum}"
    raise error(f"'{name}' of {owner} must be an integer {allowed}; got {value!r}.")


def check_positive(value: Any, name: str, owner: str) -> None:
    """Raise TypeError unless `value` is a real number, ValueError unless it is > 0."""
    _check_finite(value, f"'{name}' of {owner}", operator.gt, "greater than 0")


def check_not_negative(value: Any, name: str, owner: str) -> None:
    """Raise TypeError unless `value` is a real number, ValueError unless it is >= 0."""
    _check_finite(value, f"'{name}' of {owner}", operator.ge, "of at least 0")


def _check_finite(
    value: Any, where: str, compare: Callable[[Any, int], bool], bound: str
) -> None:
    if isinstance(value, _REAL) and not isinstance(value, bool):
        # Both are false for NaN.
        if compare(value, 0) and value < float("inf"):
            return
        error: type[Exception] = ValueError
    else:
        error = TypeError
    raise error(f"{where} must be a finite number {bound}; got {value!r}.")


def check_choice(value: Any, name: str, owner: str, choices: Collection[Any]) -> None:
    """Raise ValueError unless `value` is one of `choices`."""
    # What == makes of an array is no truth.
    is_array = bool(getattr(value, "ndim", 0))
    if is_array or not any(value is choice or value == choice for choice in choices):
        listed = ", ".join(map(repr, choices))
        got = f"an object of type {type(value).__name__}" if is_array else repr(value)
        raise ValueError(f"'{name}' of {owner} must be one of {listed}; got {got}.")


def check_directory_name(value: Any, name: str, owner: str) -> None:
    """Raise unless `value` is the name of one directory, which leads nowhere else.

    Raises
    ------
    TypeError
        If `value` is no string.
    ValueError
        If it is empty, a path, or what a file system does not take.

    Examples
    --------
    >>> check_directory_name("../test", "name", "evaluate")
    Traceback (most recent call last):
        ...
    ValueError: 'name' of evaluate must be the name of a directory; got '../test'.
    """
    if not isinstance(value, str):
        raise TypeError(f"'{name}' of {owner} must be a string; got {value!r}.")
    # On Linux a backslash is part of a name, and on Windows a path.
    if value in ("", "..") or value != Path(value).name or set(value) & {"\\", "\0"}:
        raise ValueError(
            f"'{name}' of {owner} must be the name of a directory; got {value!r}."
        )


def number_of(
    result: Mapping[str, Any], metric: str, owner: str, remedy: str = "'metric'"
) -> float:
    """Return a metric of an evaluation by which results are compared.

    Raises
    ------
    ValueError
        If the evaluation has no such metric, or it is an array, as a confusion matrix.
    """
    numbers = sorted(name for name, value in result.items() if np.ndim(value) == 0)
    if metric not in numbers:
        is_array = "it is an array, which has no order; numbers are"
        found = is_array if metric in result else "there is only"
        raise ValueError(
            f"{owner} compares the {metric!r} of evaluations, but {found} "
            f"{', '.join(map(repr, numbers))}. Pass another {remedy}."
        )
    return result[metric]


T = TypeVar("T")
Several: TypeAlias = Iterable[T] | T | None


def check_exactly_one(**named: Any) -> None:
    """Raise ValueError unless one argument is given, that is: not None.

    Examples
    --------
    >>> check_exactly_one(every_steps=100, every_secs=60)
    Traceback (most recent call last):
        ...
    ValueError: Exactly one of 'every_steps' and 'every_secs' must be given; got 100 and 60.
    """
    if sum(value is not None for value in named.values()) != 1:
        raise ValueError(
            f"Exactly one of {' and '.join(map(repr, named))} must be given; got "
            f"{' and '.join(map(repr, named.values()))}."
        )


def as_tuple(values: Several[T]) -> tuple[T, ...]:
    """Return one object, several or none (None, as in TensorFlow) as a tuple."""
    if values is None:
        return ()
    return tuple(values) if isinstance(values, Iterable) else (values,)


def check_all(
    values: Several[Any], kind: type, name: str, owner: str | None = None
) -> list[Any]:
    """Return a list; raise TypeError if something in it is of another class."""
    objects = list(as_tuple(values))
    for value in objects:
        if not isinstance(value, kind):
            # As it is imported: "skest.hooks", not "skest.hooks.base".
            package = ".".join(kind.__module__.split(".")[:2])
            raise TypeError(
                f"'{name}'{f' of {owner}' if owner else ''} must be instances of "
                f"{package}.{kind.__name__}; got {value!r}."
            )
    return objects


def check_input_fn(input_fn: Any, owner: str | None = None) -> None:
    """Raise TypeError if something is no function, such as the data themselves."""
    if not callable(input_fn):
        raise TypeError(
            f"'input_fn'{f' of {owner}' if owner else ''} must be a function that "
            f"returns an iterable of batches; got {type(input_fn).__name__}. Wrap data "
            "as `lambda: data`, or use skest.inputs.numpy_input_fn."
        )


@contextlib.contextmanager
def needing(packages: str, what: str) -> Iterator[None]:
    """Say in an ImportError what the packages are for, and how to install them.

    Parameters
    ----------
    packages : str
        Names as ``pip`` takes them.
    what : str
        What needs them.

    Examples
    --------
    >>> from skest.core.checks import needing
    >>> with needing("tqdm", "A bar"):
    ...     raise ImportError("No module named 'tqdm'")
    Traceback (most recent call last):
        ...
    ImportError: A bar needs tqdm. Install with `pip install tqdm`.
    """
    try:
        yield
    except ImportError as error:
        raise ImportError(
            f"{what} needs {' and '.join(packages.split())}. Install with "
            f"`pip install {packages}`."
        ) from error


def requires(function: Callable[..., Any], name: str) -> bool:
    """Tell whether a function has a parameter of that name and without a default.

    Examples
    --------
    >>> import torch
    >>> from skest.core.checks import requires
    >>> [requires(cls.step, "closure") for cls in (torch.optim.SGD, torch.optim.LBFGS)]
    [False, True]
    """
    parameter = inspect.signature(function).parameters.get(name)
    return parameter is not None and parameter.default is inspect.Parameter.empty


def arguments_named(
    function: Callable[..., Any], known: Collection[str]
) -> tuple[list[str], list[str]]:
    """Return which of some arguments a function names, and what else it requires.

    Parameters
    ----------
    function : callable
        What ``functools.partial`` has bound by name, it does not name any more.
    known : collection of str
        The arguments that it may be given.

    Examples
    --------
    >>> from skest.core.checks import arguments_named
    >>> arguments_named(lambda params, size, seed=0: None, ("mode", "params"))
    (['params'], ['size'])
    """
    # A partial keeps its arguments in the signature, with the given values as defaults.
    bound = function.keywords if isinstance(function, functools.partial) else {}
    named, required = [], []
    for name, parameter in inspect.signature(function).parameters.items():
        if name in known and name not in bound:
            named.append(name)
        elif name not in known and parameter.default is parameter.empty:
            if parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
                required.append(name)
    return named, required


# What is called by a user's code, or calls skest on its behalf.
_BETWEEN = {"skest", "sklearn", "joblib", "contextlib", "torch"}
# What was said within `each_once`, and the place in the code that called.
_Place: TypeAlias = tuple[str, int, str, dict[Any, Any]]
_told: ContextVar[tuple[set[str], _Place] | None] = ContextVar("_told", default=None)


@contextlib.contextmanager
def each_once() -> Iterator[None]:
    """Let `warn` say each thing once within the block, whatever the filters are.

    Threads that begin in it with a copy of the context are a part of it.
    """
    outer = _told.get()
    # The caller is found here: threads have no frames of who started them.
    token = _told.set(outer or (set(), _caller()))
    try:
        yield
    finally:
        _told.reset(token)


def warn(message: str, category: type[Warning] = UserWarning) -> None:
    """Warn, from any depth, at the line that called skest, or a search that did.

    Parameters
    ----------
    message : str
        What is wrong, and how to mend it.
    category : type of warning, default=UserWarning
        For the filters of `warnings`.

    Examples
    --------
    >>> import warnings
    >>> from skest.core.checks import warn
    >>> with warnings.catch_warnings(record=True) as caught:
    ...     warnings.simplefilter("always")
    ...     warn("The rows are few.")
    >>> str(caught[0].message)
    'The rows are few.'
    """
    # Outside of `each_once`, the filters of Python decide what is said again.
    told, place = _told.get() or (set(), _caller())
    if message not in told:
        told.add(message)
        warnings.warn_explicit(message, category, *place)


def _caller() -> _Place:
    """Return file, line, module and warnings of what called skest, or its search."""
    # With Python 3.12 at least this is 'skip_file_prefixes'.
    frame = sys._getframe()
    while frame.f_back is not None and _is_between(frame.f_globals):
        frame = frame.f_back
    # Where `warnings.warn` notes what it has shown, for the filter "default".
    said = frame.f_globals.setdefault("__warningregistry__", {})
    name = frame.f_globals.get("__name__", "<unknown>")
    return frame.f_code.co_filename, frame.f_lineno, name, said


def _is_between(names: dict[str, object]) -> bool:
    return str(names.get("__name__")).partition(".")[0] in _BETWEEN


_F = TypeVar("_F", bound=Callable[..., Any])


def former_arguments(**former: str) -> Callable[[_F], _F]:
    """Return a decorator: a function says what became of arguments of its namesake.

    Parameters
    ----------
    **former : str
        What to do instead, by the name of the argument.

    Examples
    --------
    >>> from skest.core.checks import former_arguments
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
        # Here, because subclasses have an __init__ of their own, and dataclasses a
        # generated one.
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


class ArgumentParser(argparse.ArgumentParser):
    """Ends the process with one line, without the usage of all options."""

    def error(self, message: str) -> NoReturn:
        """Say what is wrong, and where the options are listed."""
        hint = "" if message.endswith(".") else f". See `{self.prog} --help`."
        self.exit(2, f"{self.prog}: error: {message}{hint}\n")


def text_of(error: BaseException) -> str:
    """Return what an error says, without its number in the operating system."""
    if isinstance(error, OSError) and error.strerror:
        # `str` of such an error begins with "[Errno 2]".
        file = "" if error.filename is None else f"{error.filename}: "
        return f"{file}{error.strerror}"
    return str(error) or type(error).__name__
