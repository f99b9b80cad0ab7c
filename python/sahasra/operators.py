"""Python's operators and indices on remote tensors: functions that run in the session, as those of ``session.jit`` do, and return at once."""

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
    """Runs the function that is known by this key, whose last part is its name. Gives its result, or the ``whole`` of its results."""
    name = key if isinstance(key, str) else key[-1]
    session._need("xla", name)
    import jax

    if any(isinstance(argument, jax.core.Tracer) for argument in arguments):
        raise InvalidArgumentError(f"{name}: a remote tensor inside a function that JAX traces is to be an argument of the function")
    found = session._operators.get(key)
    if found is None:
        from .jit import Traced

        # No reference back to the session: a cycle would outlive its last reference until the garbage collector runs.
        found = session._operators[key] = Traced(function(), static)
    made, tree = found.call(session, arguments, {})
    return jax.tree_util.tree_unflatten(tree, made) if whole else made[0]


def _run(session: RemoteJaxSession, function: Callable[..., Any], *arguments: Any, static: tuple[int, ...] = ()) -> Any:
    return run(session, function.__name__, lambda: function, *arguments, static=static)


def _is_operand(value: Any) -> bool:
    """What may stand beside an array of JAX's: arrays and numbers, but no lists."""
    return isinstance(value, (bool, int, float, complex)) or (hasattr(value, "shape") and hasattr(value, "dtype"))


def binary(name: str) -> tuple[Operator, Operator]:
    """``tensor + other`` and ``other + tensor``, for ``add`` of the module ``operator``."""
    function: Callable[..., Any] = getattr(operator, name)

    def forward(self: RemoteTensor, other: Any) -> Any:
        return _run(self._session, function, self, other) if _is_operand(other) else NotImplemented

    def reflected(self: RemoteTensor, other: Any) -> Any:
        return _run(self._session, function, other, self) if _is_operand(other) else NotImplemented

    return forward, reflected


def power(self: RemoteTensor, exponent: Any) -> Any:
    """``tensor ** exponent``. A whole number is part of the program: as an argument JAX looks at its lowest bits alone, and takes negative ones."""
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
    """``-tensor``, for ``neg`` of the module ``operator``."""
    function: Callable[..., Any] = getattr(operator, name)
    return lambda self: _run(self._session, function, self)


def _part(part: Any) -> Any:
    """What a program knows of a part of an index: None for a number or an array, which it takes as an argument."""
    if part is None or isinstance(part, (bool, EllipsisType)):
        return (part,)
    if isinstance(part, slice):
        return (part.start, part.stop, part.step)
    return None


def index_of(parts: tuple[Any, ...], taken: Iterable[Any]) -> tuple[Any, ...]:
    """The index of what a program knows of it, and what it takes."""
    arguments = iter(taken)
    return tuple(next(arguments) if part is None else part[0] if len(part) == 1 else slice(*part) for part in parts)


def getitem(x: Any, parts: tuple[Any, ...], *taken: Any) -> Any:
    return x[index_of(parts, taken)]


def _is_array_of_jax(value: Any) -> bool:
    """Whether it is an array of JAX's that has its values; a session of another engine needs no JAX."""
    jax: Any = sys.modules.get("jax")
    return jax is not None and isinstance(value, jax.Array) and not isinstance(value, jax.core.Tracer)


def _bound(bound: Any) -> int | None:
    return None if bound is None else operator.index(bound)


def _local(part: Any) -> Any:
    """A part of an index as Python or numpy has it; a remote tensor and an array of whole numbers stay what they are.

    The bounds of a slice are part of the program: those of a remote tensor are brought here.
    """
    if isinstance(part, slice):
        return slice(_bound(part.start), _bound(part.stop), _bound(part.step))
    if isinstance(part, list):
        return np.asarray(part) if part else np.zeros(0, int)
    if isinstance(part, np.integer):
        return int(part)
    # The shape of the result depends on where an array is true.
    if (isinstance(part, (np.ndarray, np.bool_)) or _is_array_of_jax(part)) and part.dtype == bool:
        return np.asarray(part) if part.ndim else bool(part)
    return part


def local_parts(index: Any) -> list[Any]:
    """The parts of an index, each as :func:`_local` gives it."""
    return [_local(part) for part in (index if isinstance(index, tuple) else (index,))]


def index_parts(parts: Iterable[Any]) -> tuple[tuple[Any, ...], list[Any]]:
    """What a program knows of an index, and what it takes. An array of booleans becomes the places where it is true."""
    given: list[Any] = []
    for part in parts:
        # The shape of what it gives depends on its values.
        given += part.nonzero() if isinstance(part, np.ndarray) and part.dtype == bool else (part,)
    known = tuple(_part(part) for part in given)
    return known, [part for part, is_known in zip(given, known) if is_known is None]


def indexed(self: RemoteTensor, index: Any) -> RemoteTensor:
    """``tensor[index]``, there: whole numbers, slices, ``None``, ``...``, and arrays of whole numbers or, where their values are here, of booleans.

    One program serves every number in the same place. Raises ``IndexError`` for numbers out of range, for too many of them and for booleans of another
    shape; what an array of numbers has out of range is as JAX has it.
    """
    parts = local_parts(index)
    # The same index of an array of this shape that takes no memory: whole dimensions in the place of arrays, whose values are unused.
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
