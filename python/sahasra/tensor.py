"""Arrays that reside on the device of a session."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from html import escape
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from .caller import warn
from .elements import dense, element_type
from .errors import InvalidArgumentError, RemoteTransferWarning
from .methods import METHODS, PROPERTIES, At, attribute, method
from .namespace import Namespace
from .operators import binary, indexed, power, quotient_and_remainder, reflected_quotient_and_remainder, unary

if TYPE_CHECKING:
    from . import _native
    from .export import Aval
    from .session import RemoteJaxSession


class RemoteTensor:
    """An array on the device of a session.

    Its device memory is freed when no reference to the tensor is left, or by :meth:`delete`. The value is downloaded only on request:
    ``numpy()``, ``numpy.asarray(tensor)``, ``float(tensor)``. These wait for all operations on which the tensor depends, and raise their failures.

    Python's operators, comparisons and indexing run in the session. They accept other tensors of the session, arrays and numbers, and return
    tensors of the shapes and types that JAX gives: ``total = total + loss``, ``w.T @ x[0]``. The methods of JAX arrays, such as ``loss.mean()``
    and ``x.at[0].set(1.0)``, and the functions of ``x.__array_namespace__()`` do so too. Each operation is a small program of its own; a sequence
    of many operations should be one function for :meth:`RemoteJaxSession.jit`. Operations raise the same exceptions as
    :meth:`RemoteJaxSession.jit`.
    """

    # ``_donated_to`` is set only when the tensor is donated, to the name of the function.
    __slots__ = ("__weakref__", "_aval", "_donated_to", "_native", "_session")

    # Every step creates a tensor for each of its results, so the constructor stores only what cannot be looked up later.
    def __init__(self, session: RemoteJaxSession, native: _native.Tensor, aval: Aval) -> None:
        self._session = session
        self._native: _native.Tensor | None = native
        self._aval = aval

    @property
    def shape(self) -> tuple[int, ...]:
        """Length of each dimension."""
        return self._aval[0]

    @property
    def dtype(self) -> Any:
        """Type of the elements, as in JAX."""
        return self._aval[1]

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Size of the value in host memory, in bytes."""
        shape, dtype = self._physical()
        return prod(shape) * dtype.itemsize

    @property
    def device(self) -> str:
        """Device that holds the tensor, as ``worker/device``."""
        return self._session.device

    @property
    def session(self) -> RemoteJaxSession:
        """Session to which the tensor belongs."""
        return self._session

    def is_deleted(self) -> bool:
        """Returns whether the tensor was deleted or donated."""
        return self._native is None

    def _physical(self) -> tuple[tuple[int, ...], np.dtype[Any]]:
        """Returns shape and type of the stored array. Keys of random numbers are stored as 32-bit words."""
        if isinstance(self.dtype, np.dtype):
            return self.shape, self.dtype
        from .export import key_words

        return self.shape + key_words(self.dtype), np.dtype(np.uint32)

    def _handle(self) -> _native.Tensor:
        if self._native is None:
            what = f"the tensor of shape {self.shape} and dtype {self.dtype}"
            function = getattr(self, "_donated_to", None)
            if function is None:
                raise InvalidArgumentError(f"{what} was deleted: create it again")
            raise InvalidArgumentError(f"{what} was donated to {function}: use the results of that call, donate tensor.copy(), or create it again")
        return self._native

    def _donate(self, function: str) -> None:
        """Marks the tensor as donated to the function of this name."""
        self._native, self._donated_to = None, function

    def delete(self) -> None:
        """Frees the tensor now. Operations that were requested before can still use it."""
        self._native = None

    def block_until_ready(self) -> RemoteTensor:
        """Waits for all operations requested from the session so far and returns the tensor. Raises as :meth:`RemoteJaxSession.synchronise` does."""
        self._session.synchronise()
        return self

    def numpy(self) -> np.ndarray[Any, Any]:
        """Returns a copy in host memory, of the same shape and type. Keys of random numbers become their words, of shape ``shape + (words,)``.

        Waits for all operations on which the tensor depends, and raises their failures, which name the operation: :class:`OutOfDeviceMemoryError`,
        :class:`CompileError`, :class:`IncompatibleProgramError`, :class:`ExecutionError`. Raises :class:`InvalidArgumentError` for a tensor that was
        deleted or donated, and the error that ended the session, if it has ended.
        """
        shape, dtype = self._physical()
        return np.asarray(self._downloaded(shape, dtype)).view(dtype).reshape(shape)

    def _downloaded(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> _native.Block:
        block = self._handle().download(prod(shape) * dtype.itemsize).wait()
        if block.element_type != element_type(dtype) or tuple(block.dimensions) != shape:
            raise InvalidArgumentError(f"the session holds {block.element_type}{block.dimensions} where {dtype}{list(shape)} was expected")
        return block

    def jax(self) -> Any:
        """Returns a copy as a local ``jax.Array`` of the same shape and type, including keys of random numbers. Raises as :meth:`numpy` does."""
        import jax

        return jax.numpy.asarray(self.numpy()) if isinstance(self.dtype, np.dtype) else self._as_keys(self.numpy())

    def _as_keys(self, words: np.ndarray[Any, Any]) -> Any:
        """Returns the keys of random numbers that consist of these words."""
        import jax

        return jax.random.wrap_key_data(jax.numpy.asarray(words), impl=self.dtype._impl.name)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        if copy is False:
            raise ValueError("a remote tensor cannot be looked at without a copy")
        if sys._getframe(1).f_globals.get("__name__", "").startswith("jax."):
            self._comes_to_jax()
        array = self.numpy()
        return array if dtype is None else array.astype(dtype, copy=False)

    def _comes_to_jax(self) -> None:
        """Warns that a JAX function, and not the caller, reads the value.

        Raises :class:`InvalidArgumentError` if JAX is tracing.
        """
        import jax

        # During a trace, the value would silently become a constant of the program.
        if isinstance(jax.lax.full((), 0, np.int8), jax.core.Tracer):
            raise InvalidArgumentError("a remote tensor inside a function that JAX traces is to be an argument of the function")
        warn(
            f"a function of JAX brings a remote tensor of {self.nbytes:,} bytes here, after all that it waits for: run it there, as in "
            "session.jit(function)(tensor) or tensor.__array_namespace__().function(tensor), or say that it is meant by tensor.jax()",
            RemoteTransferWarning,
        )

    def item(self) -> Any:
        """Returns the only element as a Python scalar. Raises ``ValueError`` if there are several elements, and otherwise as :meth:`numpy` does."""
        shape, dtype = self._physical()
        # Avoids creating an array for a single number, which is slow in loops that read every loss.
        return self.numpy().item() if shape else np.frombuffer(self._downloaded(shape, dtype).bytes(), dtype).item()

    def tolist(self) -> Any:
        """Returns the elements as nested lists. Raises as :meth:`numpy` does."""
        return self.numpy().tolist()

    # NumPy arrays then leave ``array + tensor`` to the tensor, whose result stays in the session.
    __array_priority__ = 100

    __add__, __radd__ = binary("add")
    __sub__, __rsub__ = binary("sub")
    __mul__, __rmul__ = binary("mul")
    __matmul__, __rmatmul__ = binary("matmul")
    __truediv__, __rtruediv__ = binary("truediv")
    __floordiv__, __rfloordiv__ = binary("floordiv")
    __mod__, __rmod__ = binary("mod")
    __pow__, __rpow__ = power, binary("pow")[1]
    __divmod__, __rdivmod__ = quotient_and_remainder, reflected_quotient_and_remainder
    __and__, __rand__ = binary("and_")
    __or__, __ror__ = binary("or_")
    __xor__, __rxor__ = binary("xor")
    __lshift__, __rlshift__ = binary("lshift")
    __rshift__, __rrshift__ = binary("rshift")
    __lt__, __gt__ = binary("lt")
    __le__, __ge__ = binary("le")
    __eq__, __ne__ = binary("eq")[0], binary("ne")[0]
    __neg__, __pos__, __abs__, __invert__ = unary("neg"), unary("pos"), unary("abs"), unary("invert")
    __getitem__ = indexed
    # Not hashable, like arrays, because equality is computed element by element in the session.
    __hash__ = None  # type: ignore[assignment]

    @property
    def at(self) -> At:
        """``tensor.at[index].set(value)`` and other updates: each returns a tensor in the session that differs at the index, as in JAX."""
        return At(self)

    def __setitem__(self, index: Any, value: Any) -> None:
        raise TypeError("a remote tensor does not change: use x = x.at[index].set(value), which runs there")

    def copy(self) -> RemoteTensor:
        """Returns a tensor of the same value in the session, which remains when this one is donated or deleted."""
        copied: RemoteTensor = self.__array_namespace__().copy(self)
        return copied

    def __array_namespace__(self, *, api_version: str | None = None) -> Namespace:
        """Returns ``jax.numpy`` with functions that run in this session: ``xp = x.__array_namespace__(); xp.linalg.norm(xp.exp(x))``."""
        del api_version
        return Namespace(self._session)

    def __format__(self, spec: str) -> str:
        return format(self.item() if not self.shape else self.numpy(), spec) if spec else str(self)

    def __round__(self, ndigits: int | None = None) -> RemoteTensor:
        # As for JAX arrays, the result is an integer if the number of digits is not given.
        rounded: RemoteTensor = self.round(ndigits or 0)
        return rounded if ndigits is not None else rounded.astype(int)

    def __index__(self) -> int:
        if self.shape or np.dtype(self.dtype).kind not in "iu":
            raise TypeError(f"only whole numbers without dimensions can be an index, not {self!r}")
        return int(self.item())

    def __copy__(self) -> RemoteTensor:
        return self.copy()

    def __deepcopy__(self, memo: Any) -> RemoteTensor:
        raise TypeError(f"{self!r} is not copied unasked: use tensor.copy() for another one there, tensor.numpy() for one here")

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError(f"{self!r} lives in a session of this process and cannot be pickled: pickle tensor.numpy(), or session.get(tree), and put it again")

    def __getattr__(self, name: str) -> Any:
        hint = ""
        if not name.startswith("_"):
            hint = f": run what needs it there, as in session.jit(lambda x: x.{name}...)(tensor), or bring the value here with tensor.jax()"
        raise AttributeError(f"a remote tensor has no attribute {name!r}{hint}")

    def __float__(self) -> float:
        return float(self.item())

    def __int__(self) -> int:
        return int(self.item())

    def __bool__(self) -> bool:
        return bool(self.item())

    def __complex__(self) -> complex:
        return complex(self.item())

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of a tensor without dimensions")
        return self.shape[0]

    def __iter__(self) -> Iterator[Any]:
        # Downloads all elements at once, because each would take a round trip of its own. NumPy has no keys of random numbers.
        return iter(self.numpy() if isinstance(self.dtype, np.dtype) else self.jax())

    def _where(self) -> str:
        return "deleted" if self._native is None else self.device

    def __repr__(self) -> str:
        return f"RemoteTensor(shape={self.shape}, dtype={self.dtype}, on {self._where()})"

    def _repr_html_(self) -> str:
        return (
            f"<code>RemoteTensor</code> <b>{escape(str(self.dtype))}{escape(str(list(self.shape)))}</b> "
            f"{self.nbytes:,} bytes on <code>{escape(self._where())}</code>, session <code>{escape(self._session.name)}</code>"
        )


for _name in METHODS:
    setattr(RemoteTensor, _name, method(_name))
for _name in PROPERTIES:
    setattr(RemoteTensor, _name, attribute(_name))


def upload(session: RemoteJaxSession, array: np.ndarray[Any, Any], *, immutable: bool, dtype: Any = None, shape: Any = None, weak_type: bool = False) -> RemoteTensor:
    """Uploads an array. Copies it first, unless ``immutable`` guarantees that it does not change before it has been sent."""
    there = dense(array)
    kind = element_type(there.dtype)
    copy = there is array and not immutable
    with session._watch.during("upload", "", there.nbytes):
        native = session._native.put(there, there.ctypes.data, there.nbytes, kind, there.shape, copy)
    return RemoteTensor(session, native, (array.shape if shape is None else shape, there.dtype if dtype is None else dtype, weak_type))
