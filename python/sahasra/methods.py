"""Methods of arrays and functions of ``jax.numpy`` on remote tensors: they run in the session, as Python's operators do, and return at once."""

from __future__ import annotations

import types
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

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
#: Functions of ``jax.numpy`` that look at types and shapes alone.
_OF_TYPES = ("can_cast", "isdtype", "issubdtype", "ndim", "promote_types", "result_type", "shape", "size")


class _Taken:
    """Stands for an argument that a program takes."""


_TAKEN = _Taken()


def _is_taken(value: Any) -> bool:
    """Arrays and floating-point numbers are arguments of a program; whole numbers (axes, counts), types and words are part of it."""
    if isinstance(value, (type, np.dtype, np.integer, np.bool_)):
        return False
    return isinstance(value, (float, complex)) or (hasattr(value, "shape") and hasattr(value, "dtype"))


def _apply(function: Callable[..., Any], name: str, count: int) -> Callable[..., Any]:
    """A function of what is part of a program, and what the program takes: so many indices first."""

    def applied(known: Any, *taken: Any) -> Any:
        import jax

        leaves, tree = known
        indices, values = taken[:count], iter(taken[count:])
        given, keywords = jax.tree_util.tree_unflatten(tree, [next(values) if leaf is _TAKEN else leaf[1] for leaf in leaves])
        return function(*indices, *given, **keywords)

    applied.__name__ = name
    return applied


def _call(session: RemoteJaxSession, key: Any, function: Callable[[], Callable[..., Any]], arguments: Any, keywords: Any, indices: Sequence[Any] = ()) -> Any:
    """Runs the function of ``arguments`` and ``keywords`` that is known by this key, after ``indices``, which are never part of the program."""
    import jax

    # None is a value here: as an axis or an index.
    leaves, tree = jax.tree_util.tree_flatten((arguments, keywords), is_leaf=lambda value: value is None)
    # With their types: True and 1 are equal, and make results of different types.
    known = tuple(_TAKEN if _is_taken(leaf) else (type(leaf), leaf) for leaf in leaves)
    taken = (*indices, *(leaf for leaf in leaves if _is_taken(leaf)))
    return run(session, key, lambda: _apply(function(), key[-1], len(indices)), (known, tree), *taken, static=(0,), whole=True)


def method(name: str) -> Callable[..., RemoteTensor]:
    """The method of ``jax.Array`` of this name."""

    def called(self: RemoteTensor, *arguments: Any, **keywords: Any) -> Any:
        return _call(self._session, ("method", name), lambda: lambda x, *given, **named: getattr(x, name)(*given, **named), (self, *arguments), keywords)

    called.__name__ = name
    called.__doc__ = f"As ``jax.Array.{name}``, there."
    return called


def attribute(name: str) -> property:
    """The property of ``jax.Array`` of this name."""

    def asked(self: RemoteTensor) -> Any:
        return _call(self._session, ("property", name), lambda: lambda x: getattr(x, name), (self,), {})

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

        return _call(self._tensor._session, ("at", known, f"at_{name}"), lambda: updated, (self._tensor, *arguments), keywords, taken)


def _update(name: str) -> Callable[..., Any]:
    def called(self: AtIndex, *arguments: Any, **keywords: Any) -> Any:
        return self._update(name, arguments, keywords)

    called.__name__ = name
    called.__doc__ = f"As ``array.at[index].{name}`` of JAX's, there."
    return called


for _name in UPDATES:
    setattr(AtIndex, _name, _update(_name))


class Namespace:
    """``jax.numpy`` whose functions run in a session: what ``tensor.__array_namespace__()`` gives to code that is written for any array.

    Functions that make arrays (``zeros``, ``arange``) make them there.
    """

    __slots__ = ("_module", "_path", "_session")

    def __init__(self, session: RemoteJaxSession, module: Any = None, path: tuple[str, ...] = ()) -> None:
        import jax.numpy

        self._session, self._module, self._path = session, jax.numpy if module is None else module, path

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Namespace) and other._session is self._session and other._path == self._path

    def __hash__(self) -> int:
        return hash((id(self._session), self._path))

    def __dir__(self) -> list[str]:
        return dir(self._module)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._module, name)
        if isinstance(found, types.ModuleType):
            return Namespace(self._session, found, (*self._path, name))
        if name.startswith("_") or not callable(found) or isinstance(found, type) or not (hasattr(found, "__wrapped__") or hasattr(found, "__code__") or hasattr(found, "reduce")):
            return found
        if name in _OF_TYPES:
            return lambda *arguments, **keywords: found(*(_typed(argument) for argument in arguments), **keywords)

        def called(*arguments: Any, **keywords: Any) -> Any:
            return _call(self._session, ("numpy", *self._path, name), lambda: found, arguments, keywords)

        called.__name__, called.__doc__ = name, found.__doc__
        return called

    def __repr__(self) -> str:
        return f"<{self._module.__name__} on {self._session.device}>"


def _typed(value: Any) -> Any:
    """What looks at types and shapes need not have values."""
    import jax

    from .tensor import RemoteTensor

    struct: Any = jax.ShapeDtypeStruct
    return struct(value.shape, value.dtype) if isinstance(value, RemoteTensor) else value
