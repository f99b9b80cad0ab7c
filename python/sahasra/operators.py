"""Python's operators and indexing on remote tensors. Like functions of ``session.jit``, they run in the session and return immediately."""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable, Iterable
from types import EllipsisType
from typing import TYPE_CHECKING, Any

import numpy as np

from .errors import InvalidArgumentError

if TYPE_CHECKING:
    from .session import RemoteJaxSession
    from .tensor import RemoteTensor

Operator = Callable[["RemoteTensor", Any], Any]


def run(session: RemoteJaxSession, key: Any, function: Callable[[], Callable[..., Any]], *arguments: Any, static: tuple[int, ...] = (), whole: bool = False) -> Any:
    """Runs the function of this key in the session. ``function`` creates it if the key, whose last part is the function's name, is new.

    Returns the first leaf of the results or, if ``whole``, all results in the function's structure.
    """
    name = key if isinstance(key, str) else key[-1]
    session._need("xla", name)
    import jax

    if any(isinstance(argument, jax.core.Tracer) for argument in arguments):
        raise InvalidArgumentError(f"{name}: a remote tensor inside a function that JAX traces is to be an argument of the function")
    found = session._operators.get(key)
    if found is None:
        from .jit import Traced

        # The function has no reference to the session: a cycle would keep the session alive until the garbage collector runs.
        found = session._operators[key] = Traced(function(), static)
    made, tree = found.call(session, arguments, {})
    return jax.tree_util.tree_unflatten(tree, made) if whole else made[0]


def _run(session: RemoteJaxSession, function: Callable[..., Any], *arguments: Any, static: tuple[int, ...] = ()) -> Any:
    return run(session, function.__name__, lambda: function, *arguments, static=static)


def _is_operand(value: Any) -> bool:
    """Returns whether JAX accepts the value as the other operand of an array: arrays and numbers, but no lists."""
    return isinstance(value, (bool, int, float, complex)) or (hasattr(value, "shape") and hasattr(value, "dtype"))


#: Operators for which Python has a meaning of its own if a tensor does not take the operand: identity, and repetition of a sequence.
_SIGNS = {"eq": "==", "ne": "!=", "mul": "*"}


def _declined(name: str, left: Any, right: Any, other: Any) -> Any:
    """Returns ``NotImplemented`` for an operand that tensors do not take.

    Raises ``TypeError``, as JAX does, for a container where Python would otherwise give a result that has nothing to do with the elements. Subclasses
    may know the operator themselves.
    """
    if name in _SIGNS and type(other) in (list, tuple, set, dict):
        remedy = ": write numpy.asarray(...) around it" if isinstance(other, (list, tuple)) else ""
        raise TypeError(f"unsupported operand type(s) for {_SIGNS[name]}: {type(left).__name__!r} and {type(right).__name__!r}{remedy}")
    return NotImplemented


def binary(name: str) -> tuple[Operator, Operator]:
    """Returns the methods for ``tensor + other`` and ``other + tensor``, if ``name`` is ``add`` of the module ``operator``."""
    function: Callable[..., Any] = getattr(operator, name)

    def forward(self: RemoteTensor, other: Any) -> Any:
        return _run(self._session, function, self, other) if _is_operand(other) else _declined(name, self, other, other)

    def reflected(self: RemoteTensor, other: Any) -> Any:
        return _run(self._session, function, other, self) if _is_operand(other) else _declined(name, other, self, other)

    return forward, reflected


def power(self: RemoteTensor, exponent: Any) -> Any:
    """``tensor ** exponent``. An integer exponent is part of the program: if it were an argument, JAX would read only its lowest bits, and would not
    reject negative values.
    """
    if isinstance(exponent, (int, np.integer)) and not isinstance(exponent, bool):
        return run(self._session, ("whole", "pow"), lambda: operator.pow, self, exponent, static=(1,))
    return _run(self._session, operator.pow, self, exponent) if _is_operand(exponent) else NotImplemented


def quotient_and_remainder(self: RemoteTensor, other: Any) -> Any:
    """``divmod(tensor, other)``, a pair."""
    return run(self._session, "divmod", lambda: divmod, self, other, whole=True) if _is_operand(other) else NotImplemented


def reflected_quotient_and_remainder(self: RemoteTensor, other: Any) -> Any:
    """``divmod(other, tensor)``, a pair."""
    return run(self._session, "divmod", lambda: divmod, other, self, whole=True) if _is_operand(other) else NotImplemented


def unary(name: str) -> Callable[[RemoteTensor], Any]:
    """Returns the method for ``-tensor``, if ``name`` is ``neg`` of the module ``operator``."""
    function: Callable[..., Any] = getattr(operator, name)
    return lambda self: _run(self._session, function, self)


def _part(part: Any) -> Any:
    """Returns the constant part of an index in a program, or None for a number or an array, which the program takes as an argument."""
    if part is None or isinstance(part, (bool, EllipsisType)):
        return (part,)
    if isinstance(part, slice):
        return (part.start, part.stop, part.step)
    return None


def index_of(parts: tuple[Any, ...], taken: Iterable[Any]) -> tuple[Any, ...]:
    """Returns the index made of its constant parts and of the program's arguments."""
    arguments = iter(taken)
    return tuple(next(arguments) if part is None else part[0] if len(part) == 1 else slice(*part) for part in parts)


def getitem(x: Any, parts: tuple[Any, ...], *taken: Any) -> Any:
    return x[index_of(parts, taken)]


def _is_array_of_jax(value: Any) -> bool:
    """Returns whether the value is a JAX array with a value, not a tracer. Does not import JAX, which a session of another engine does not need."""
    jax: Any = sys.modules.get("jax")
    return jax is not None and isinstance(value, jax.Array) and not isinstance(value, jax.core.Tracer)


def _bound(bound: Any) -> int | None:
    return None if bound is None else operator.index(bound)


def _local(part: Any) -> Any:
    """Returns a part of an index as an object of Python or NumPy. A remote tensor and an array of integers are returned unchanged.

    The bounds of a slice are part of the program, so those that are remote tensors are downloaded.
    """
    if isinstance(part, slice):
        return slice(_bound(part.start), _bound(part.stop), _bound(part.step))
    if isinstance(part, list):
        return np.asarray(part) if part else np.zeros(0, int)
    if isinstance(part, np.integer):
        return int(part)
    # The shape of the result depends on the positions at which an array is true.
    if (isinstance(part, (np.ndarray, np.bool_)) or _is_array_of_jax(part)) and part.dtype == bool:
        return np.asarray(part) if part.ndim else bool(part)
    return part


def local_parts(index: Any) -> list[Any]:
    """Returns the parts of an index, each converted by :func:`_local`."""
    return [_local(part) for part in (index if isinstance(index, tuple) else (index,))]


def index_parts(parts: Iterable[Any]) -> tuple[tuple[Any, ...], list[Any]]:
    """Returns the constant parts of an index and the program's arguments for it. A boolean array becomes the positions at which it is true."""
    given: list[Any] = []
    for part in parts:
        # A boolean array's values determine the shape of the result.
        given += part.nonzero() if isinstance(part, np.ndarray) and part.dtype == bool else (part,)
    known = tuple(_part(part) for part in given)
    return known, [part for part, is_known in zip(given, known) if is_known is None]


def indexed(self: RemoteTensor, index: Any) -> RemoteTensor:
    """``tensor[index]`` in the session: integers, slices, ``None``, ``...``, integer arrays and, if their values are local, boolean arrays.

    One program serves all integers at the same position. Raises ``IndexError`` for integers out of range, for too many indices and for boolean
    arrays of another shape. Elements of integer arrays that are out of range are treated as in JAX.
    """
    parts = local_parts(index)
    # Applies the same index to an array of this shape that occupies no memory, with whole dimensions in place of arrays, whose values do not matter.
    probe: list[Any] = []
    for part in parts:
        if isinstance(part, np.ndarray) and part.dtype == bool:
            probe.append(part)
        else:
            probe.append((slice(None) if part.shape else 0) if hasattr(part, "shape") else part)
    np.broadcast_to(np.int8(0), self.shape)[tuple(probe)]
    known, taken = index_parts(parts)
    result: RemoteTensor = _run(self._session, getitem, self, known, *taken, static=(1,))
    return result
