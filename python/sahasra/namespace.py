"""A version of ``jax.numpy`` whose functions run in a session."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .methods import call

if TYPE_CHECKING:
    from .session import RemoteJaxSession

#: Functions that depend only on types and shapes. They run locally and return types, tuples, Python numbers and strings.
OF_TYPES = frozenset({
    "broadcast_shapes", "can_cast", "einsum_path", "iscomplexobj", "isdtype", "isrealobj", "isscalar", "issubdtype", "iterable", "ndim", "promote_types",
    "result_type", "shape", "size",
})  # fmt: skip
#: Functions that concern this process, and functions that create functions. They are used as in ``jax.numpy``.
OF_PROCESS = frozenset({"array_repr", "array_str", "frompyfunc", "get_printoptions", "printoptions", "save", "savez", "set_printoptions", "vectorize"})
#: Functions that read data of this process. They run locally, and the arrays that they return are put into the session.
READERS = frozenset({"from_dlpack", "frombuffer", "fromfile", "fromiter", "fromstring", "load"})


def _of_types(function: Callable[..., Any], arguments: Any, keywords: Any) -> Any:
    """Calls the function with JAX tracers in place of remote tensors, whose values are not needed."""
    import jax

    from .tensor import RemoteTensor

    leaves, tree = jax.tree_util.tree_flatten((arguments, keywords), is_leaf=lambda value: value is None)
    struct: Any = jax.ShapeDtypeStruct
    tensors = [struct(leaf.shape, leaf.dtype, weak_type=leaf._aval[2]) for leaf in leaves if isinstance(leaf, RemoteTensor)]
    found = []

    def look(*traced: Any) -> None:
        values = iter(traced)
        given, named = jax.tree_util.tree_unflatten(tree, [next(values) if isinstance(leaf, RemoteTensor) else leaf for leaf in leaves])
        found.append(function(*given, **named))

    jax.eval_shape(look, *tensors)
    return found[0]


class Namespace:
    """``jax.numpy`` with functions that run in a session: the result of ``tensor.__array_namespace__()`` for code written for any kind of array.

    Functions that create arrays (``zeros``, ``arange``) create them in the session. Functions that depend only on types and shapes
    (``result_type``, ``iscomplexobj``) run locally and return no tensors. Functions whose result shape depends on values of tensors (``unique``)
    are rejected, as under ``jax.jit``.
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
        if name in OF_PROCESS:
            return found

        def called(*arguments: Any, **keywords: Any) -> Any:
            if name in OF_TYPES:
                return _of_types(found, arguments, keywords)
            if name in READERS:
                return self._session.put(found(*arguments, **keywords))
            return call(self._session, ("numpy", *self._path, name), lambda: found, arguments, keywords)

        called.__name__, called.__doc__ = name, found.__doc__
        return called

    def __repr__(self) -> str:
        return f"<{self._module.__name__} on {self._session.device}>"
