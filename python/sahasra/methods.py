"""Methods of arrays on remote tensors: they run in the session, as Python's operators do, and return at once."""

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

#: Methods of ``jax.Array`` that a remote tensor has. What has a shape that depends on values, such as ``nonzero``, is not among them.
METHODS = (
    "all", "any", "argmax", "argmin", "argpartition", "argsort", "astype", "clip", "conj", "conjugate", "cumprod", "cumsum", "diagonal",
    "dot", "flatten", "max", "mean", "min", "prod", "ravel", "repeat", "reshape", "round", "searchsorted", "sort", "squeeze", "std", "sum",
    "swapaxes", "take", "trace", "transpose", "var", "view",
)  # fmt: skip
PROPERTIES = ("T", "imag", "mT", "real")
#: What is done at an index, as ``array.at[index]`` of JAX's has it.
UPDATES = ("add", "divide", "get", "max", "min", "mul", "multiply", "power", "set", "subtract")
#: Functions of ``jax.numpy`` whose results have a shape that depends on the values of numbers.
_OF_VALUES = {("numpy", "arange")}
#: Other calls, by function and what is part of the program, that JAX traced only with the values of all that is here.
_needs_values: set[Any] = set()


class _Taken:
    """Stands for an argument that a program takes."""


_TAKEN = _Taken()


class _Value:
    """Something that is part of a program by its value and does not compare by it: a number that may be -0.0 or NaN, an array."""

    def __init__(self, value: Any) -> None:
        # An array of numpy's may change.
        self.value = value.copy() if isinstance(value, np.ndarray) else value
        array = np.asarray(value)
        self._key = (type(value), array.dtype, array.shape, array.tobytes(), getattr(value, "weak_type", None))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Value) and other._key == self._key

    def __hash__(self) -> int:
        return hash(self._key)


def _is_taken(value: Any) -> bool:
    """Arrays and floating-point numbers are arguments of a program; whole numbers (axes, counts), types and words are part of it."""
    if isinstance(value, (type, np.dtype, np.integer, np.bool_)):
        return False
    return isinstance(value, (float, complex)) or (hasattr(value, "shape") and hasattr(value, "dtype"))


def _has_no_value(leaf: Any) -> bool:
    """Whether an argument has no value here that could be part of a program: remote tensors, what JAX traces, keys of random numbers."""
    import jax

    if not hasattr(leaf, "dtype") or isinstance(leaf, (type, np.dtype)):
        return False
    return not isinstance(leaf, (np.ndarray, np.generic, jax.Array)) or isinstance(leaf, jax.core.Tracer) or not isinstance(leaf.dtype, np.dtype)


def _known(leaves: Iterable[Any], is_taken: Callable[[Any], bool]) -> tuple[Any, ...]:
    """What is part of a program, with its types: True and 1 are equal, and make results of different types."""
    return tuple(_TAKEN if is_taken(leaf) else (type(leaf), _Value(leaf) if _is_taken(leaf) else leaf) for leaf in leaves)


def _is_among(thing: Any, things: set[Any]) -> bool:
    try:
        return thing in things
    except TypeError:
        # What cannot be hashed is refused where the program is made.
        return False


def _apply(function: Callable[..., Any], name: str, count: int) -> Callable[..., Any]:
    """A function of what is part of a program, and what the program takes: so many indices first."""

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
    """Runs the function of ``arguments`` and ``keywords`` that is known by this key, after ``indices``, which are never part of the program."""
    import jax

    # None is a value here: as an axis or an index.
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
        # Where JAX has numbers and arrays that decide over shapes (norm's order, where to split) it needs their values.
        if all(_has_no_value(leaf) for leaf in leaves if _is_taken(leaf)):
            raise
        with contextlib.suppress(TypeError, ValueError, IndexError):
            result = made(_known(leaves, _has_no_value), _has_no_value)
            _needs_values.add((key, known, tree))
            return result
        raise


def method(name: str) -> Callable[..., RemoteTensor]:
    """The method of ``jax.Array`` of this name."""

    def called(self: RemoteTensor, *arguments: Any, **keywords: Any) -> Any:
        return call(self._session, ("method", name), lambda: lambda x, *given, **named: getattr(x, name)(*given, **named), (self, *arguments), keywords)

    called.__name__ = name
    called.__doc__ = f"As ``jax.Array.{name}``, there."
    return called


def attribute(name: str) -> property:
    """The property of ``jax.Array`` of this name."""

    def asked(self: RemoteTensor) -> Any:
        return call(self._session, ("property", name), lambda: lambda x: getattr(x, name), (self,), {})

    asked.__doc__ = f"As ``jax.Array.{name}``, there."
    return property(asked)


class At:
    """``tensor.at``: a copy of the tensor with something else at an index, made there, such as ``tensor.at[0].set(1.0)``."""

    __slots__ = ("_tensor",)

    def __init__(self, tensor: RemoteTensor) -> None:
        self._tensor = tensor

    def __getitem__(self, index: Any) -> AtIndex:
        return AtIndex(self._tensor, index)


class AtIndex:
    """``tensor.at[index]``, with the methods of JAX's."""

    __slots__ = ("_index", "_tensor")

    def __init__(self, tensor: RemoteTensor, index: Any) -> None:
        self._tensor, self._index = tensor, index

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Callable[..., RemoteTensor]: ...

    def _update(self, name: str, arguments: Any, keywords: Any) -> Any:
        known, taken = index_parts(local_parts(self._index))
        # The session keeps the function, which is not to keep tensors.
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
