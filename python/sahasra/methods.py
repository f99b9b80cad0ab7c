"""Array methods of remote tensors. Like Python's operators, they run in the session and return immediately."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .errors import SahasraError
from .operators import index_of, index_parts, local_parts, run

if TYPE_CHECKING:
    from .session import RemoteJaxSession
    from .tensor import RemoteTensor

#: Methods of ``jax.Array`` that a remote tensor has. Methods whose result shape depends on values, such as ``nonzero``, are not included.
METHODS = (
    "all", "any", "argmax", "argmin", "argpartition", "argsort", "astype", "clip", "conj", "conjugate", "cumprod", "cumsum", "diagonal",
    "dot", "flatten", "max", "mean", "min", "prod", "ravel", "repeat", "reshape", "round", "searchsorted", "sort", "squeeze", "std", "sum",
    "swapaxes", "take", "trace", "transpose", "var", "view",
)  # fmt: skip
PROPERTIES = ("T", "imag", "mT", "real")
#: Methods of ``tensor.at[index]``, which JAX arrays have on ``array.at[index]``.
UPDATES = ("add", "divide", "get", "max", "min", "mul", "multiply", "power", "set", "subtract")
#: Functions of ``jax.numpy`` whose result shapes depend on the values of numbers.
_OF_VALUES = {("numpy", "arange")}
#: Other calls, by function and constant parts of the program, that JAX could trace only with the values of all local arguments.
_needs_values: set[Any] = set()


class _Taken:
    """Placeholder for a leaf that a program takes as an argument."""


_TAKEN = _Taken()


class _Value:
    """A constant of a program that is compared bit by bit instead of with ``==``: a number that may be -0.0 or NaN, or an array."""

    def __init__(self, value: Any) -> None:
        # A NumPy array may be modified later.
        self.value = value.copy() if isinstance(value, np.ndarray) else value
        array = np.asarray(value)
        self._key = (type(value), array.dtype, array.shape, array.tobytes(), getattr(value, "weak_type", None))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Value) and other._key == self._key

    def __hash__(self) -> int:
        return hash(self._key)


def _is_taken(value: Any) -> bool:
    """Returns whether a leaf is an argument of a program: arrays and floating-point or complex numbers are.

    Integers (axes, counts), types and strings are part of the program instead.
    """
    if isinstance(value, (type, np.dtype, np.integer, np.bool_)):
        return False
    return isinstance(value, (float, complex)) or (hasattr(value, "shape") and hasattr(value, "dtype"))


def _has_no_value(leaf: Any) -> bool:
    """Returns whether a leaf lacks a local value that could be part of a program: remote tensors, values that JAX traces, keys of random numbers."""
    import jax

    if not hasattr(leaf, "dtype") or isinstance(leaf, (type, np.dtype)):
        return False
    return not isinstance(leaf, (np.ndarray, np.generic, jax.Array)) or isinstance(leaf, jax.core.Tracer) or not isinstance(leaf.dtype, np.dtype)


def _known(leaves: Iterable[Any], is_taken: Callable[[Any], bool]) -> tuple[Any, ...]:
    """Returns the leaves that are part of a program, with their types: ``True`` and 1 are equal, but give results of different types.

    ``_TAKEN`` stands for each leaf that the program takes as an argument.
    """
    return tuple(_TAKEN if is_taken(leaf) else (type(leaf), _Value(leaf) if _is_taken(leaf) else leaf) for leaf in leaves)


def _is_among(thing: Any, things: set[Any]) -> bool:
    try:
        return thing in things
    except TypeError:
        # An unhashable value is rejected when the program is created.
        return False


def _apply(function: Callable[..., Any], name: str, count: int) -> Callable[..., Any]:
    """Returns a function of the constant parts of a program and of its arguments, the first ``count`` of which are indices."""

    def applied(known: Any, *taken: Any) -> Any:
        import jax

        leaves, tree = known
        indices, values = taken[:count], iter(taken[count:])
        opened = [next(values) if leaf is _TAKEN else leaf[1].value if isinstance(leaf[1], _Value) else leaf[1] for leaf in leaves]
        given, keywords = jax.tree_util.tree_unflatten(tree, opened)
        return function(*indices, *given, **keywords)

    applied.__name__ = name
    return applied


def call(session: RemoteJaxSession, key: Any, function: Callable[[], Callable[..., Any]], arguments: Any, keywords: Any, indices: Sequence[Any] = ()) -> Any:
    """Runs a function on ``indices``, ``arguments`` and ``keywords`` in the session, and returns its results as remote tensors.

    ``function`` creates the function if ``key``, whose last part is its name, is new to the session. ``indices`` come first, and are always
    arguments of the program rather than part of it.
    """
    import jax

    # None counts as a value, because it may be an axis or an index.
    leaves, tree = jax.tree_util.tree_flatten((arguments, keywords), is_leaf=lambda value: value is None)

    def made(known: Any, is_taken: Callable[[Any], bool]) -> Any:
        taken = (*indices, *(leaf for leaf in leaves if is_taken(leaf)))
        return run(session, key, lambda: _apply(function(), key[-1], len(indices)), (known, tree), *taken, static=(0,), whole=True)

    known = _known(leaves, _is_taken)
    if key in _OF_VALUES or _is_among((key, known, tree), _needs_values):
        return made(_known(leaves, _has_no_value), _has_no_value)
    try:
        return made(known, _is_taken)
    except SahasraError:
        raise
    except (TypeError, ValueError, IndexError):
        # JAX needs the values of numbers and arrays that determine shapes, such as the order of a norm or the indices at which to split.
        if all(_has_no_value(leaf) for leaf in leaves if _is_taken(leaf)):
            raise
        with contextlib.suppress(TypeError, ValueError, IndexError):
            result = made(_known(leaves, _has_no_value), _has_no_value)
            _needs_values.add((key, known, tree))
            return result
        raise


def method(name: str) -> Callable[..., RemoteTensor]:
    """Returns the method of remote tensors that corresponds to the method of ``jax.Array`` with this name."""

    def called(self: RemoteTensor, *arguments: Any, **keywords: Any) -> Any:
        return call(self._session, ("method", name), lambda: lambda x, *given, **named: getattr(x, name)(*given, **named), (self, *arguments), keywords)

    called.__name__ = name
    called.__doc__ = f"As ``jax.Array.{name}``, there."
    return called


def attribute(name: str) -> property:
    """Returns the property of remote tensors that corresponds to the property of ``jax.Array`` with this name."""

    def asked(self: RemoteTensor) -> Any:
        return call(self._session, ("property", name), lambda: lambda x: getattr(x, name), (self,), {})

    asked.__doc__ = f"As ``jax.Array.{name}``, there."
    return property(asked)


class At:
    """``tensor.at``: its updates create a modified copy of the tensor in the session, such as ``tensor.at[0].set(1.0)``."""

    __slots__ = ("_tensor",)

    def __init__(self, tensor: RemoteTensor) -> None:
        self._tensor = tensor

    def __getitem__(self, index: Any) -> AtIndex:
        return AtIndex(self._tensor, index)


class AtIndex:
    """``tensor.at[index]``, with the methods that JAX arrays have."""

    __slots__ = ("_index", "_tensor")

    def __init__(self, tensor: RemoteTensor, index: Any) -> None:
        self._tensor, self._index = tensor, index

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Callable[..., RemoteTensor]: ...

    def _update(self, name: str, arguments: Any, keywords: Any) -> Any:
        known, taken = index_parts(local_parts(self._index))
        # The session keeps the function, which therefore must not refer to tensors.
        count = len(taken)

        def updated(*given: Any, **named: Any) -> Any:
            indices, (x, *values) = given[:count], given[count:]
            return getattr(x.at[index_of(known, indices)], name)(*values, **named)

        return call(self._tensor._session, ("at", known, f"at_{name}"), lambda: updated, (self._tensor, *arguments), keywords, taken)


def _update(name: str) -> Callable[..., Any]:
    def called(self: AtIndex, *arguments: Any, **keywords: Any) -> Any:
        return self._update(name, arguments, keywords)

    called.__name__ = name
    called.__doc__ = f"As ``array.at[index].{name}`` of JAX's, there."
    return called


for _name in UPDATES:
    setattr(AtIndex, _name, _update(_name))
