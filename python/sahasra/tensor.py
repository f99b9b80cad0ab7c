"""An array that lives on a session's device."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from .elements import dense, element_type
from .errors import InvalidArgumentError
from .operators import binary, indexed, transposed, unary

if TYPE_CHECKING:
    from . import _native
    from .session import RemoteJaxSession


class RemoteTensor:
    """An array on a session's device.

    It is freed there when nothing refers to it any more, or by :meth:`delete`. Its value comes back only when it is asked for:
    ``numpy()``, ``numpy.asarray(tensor)``, ``float(tensor)``. That waits for everything before it and raises what went wrong.

    Python's operators, comparisons and indices run there, with other tensors of the session, arrays and numbers, and give tensors there, of the shapes
    and types that JAX gives: ``total = total + loss``, ``w.T @ x[0]``. Each is a small program of its own; many of them at once belong into
    a function for :meth:`RemoteJaxSession.jit`. They raise what :meth:`RemoteJaxSession.jit` does.
    """

    __slots__ = ("__weakref__", "_aval", "_native", "_session", "dtype", "shape")

    def __init__(self, session: RemoteJaxSession, native: _native.Tensor, shape: tuple[int, ...], dtype: Any, weak_type: bool = False) -> None:
        self._session = session
        self._native: _native.Tensor | None = native
        self.shape = shape
        self.dtype = dtype
        # What a cache of programs goes by.
        self._aval = (shape, dtype, weak_type)

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
        """Bytes in host memory."""
        shape, dtype = self._physical()
        return prod(shape) * dtype.itemsize

    @property
    def device(self) -> str:
        """Where it lives: ``worker/device``."""
        return self._session.device

    @property
    def session(self) -> RemoteJaxSession:
        """Whose it is."""
        return self._session

    @property
    def is_deleted(self) -> bool:
        """It was deleted or donated."""
        return self._native is None

    def _physical(self) -> tuple[tuple[int, ...], np.dtype[Any]]:
        """Shape and type of what is stored: keys of random numbers are words."""
        if isinstance(self.dtype, np.dtype):
            return self.shape, self.dtype
        from .export import key_words

        return self.shape + key_words(self.dtype), np.dtype(np.uint32)

    def _handle(self) -> _native.Tensor:
        if self._native is None:
            raise InvalidArgumentError("the tensor was deleted or donated: its memory is another's")
        return self._native

    def delete(self) -> None:
        """Frees it now. Operations that were asked for before still use it."""
        self._native = None

    def block_until_ready(self) -> RemoteTensor:
        """Waits for every operation of the session so far; raises the first failure."""
        self._session.synchronise()
        return self

    def numpy(self) -> np.ndarray[Any, Any]:
        """A copy in host memory, of this shape and type; keys of random numbers as their words, ``shape + (words,)``.

        It waits for what the tensor depends on, and raises what went wrong there: :class:`OutOfDeviceMemoryError`, :class:`CompileError`,
        :class:`IncompatibleProgramError`, :class:`ExecutionError`, with the operation's name. :class:`InvalidArgumentError` for a tensor that was
        deleted or donated; what ended the session, if it has ended.
        """
        shape, dtype = self._physical()
        block = self._handle().download(prod(shape) * dtype.itemsize).wait()
        if block.element_type != element_type(dtype) or tuple(block.dimensions) != shape:
            raise InvalidArgumentError(f"the session holds {block.element_type}{block.dimensions} where {dtype}{list(shape)} was expected")
        return np.asarray(block).view(dtype).reshape(shape)

    def jax(self) -> Any:
        """A copy as a local ``jax.Array`` of this shape and type, keys of random numbers included. Raises as :meth:`numpy` does."""
        import jax

        if isinstance(self.dtype, np.dtype):
            return jax.numpy.asarray(self.numpy())
        return jax.random.wrap_key_data(jax.numpy.asarray(self.numpy()), impl=self.dtype._impl.name)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        if copy is False:
            raise ValueError("a remote tensor cannot be looked at without a copy")
        array = self.numpy()
        return array if dtype is None else array.astype(dtype, copy=False)

    def item(self) -> Any:
        """The only element, as Python has it. Raises ``ValueError`` where there are several, and as :meth:`numpy` does."""
        return self.numpy().item()

    def tolist(self) -> Any:
        """The elements, as nested lists. Raises as :meth:`numpy` does."""
        return self.numpy().tolist()

    # Arrays of numpy's leave ``array + tensor`` to the tensor, which stays there.
    __array_priority__ = 100

    __add__, __radd__ = binary("add")
    __sub__, __rsub__ = binary("sub")
    __mul__, __rmul__ = binary("mul")
    __matmul__, __rmatmul__ = binary("matmul")
    __truediv__, __rtruediv__ = binary("truediv")
    __floordiv__, __rfloordiv__ = binary("floordiv")
    __mod__, __rmod__ = binary("mod")
    __pow__, __rpow__ = binary("pow")
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
    T = property(transposed)
    # As an array's: what is equal is found out there.
    __hash__ = None  # type: ignore[assignment]

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
        # Element by element it would be a round trip each.
        return iter(self.numpy())

    def _where(self) -> str:
        return "deleted" if self._native is None else self.device

    def __repr__(self) -> str:
        return f"RemoteTensor(shape={self.shape}, dtype={self.dtype}, on {self._where()})"

    def _repr_html_(self) -> str:
        return (
            f"<code>RemoteTensor</code> <b>{escape(str(self.dtype))}{escape(str(list(self.shape)))}</b> "
            f"{self.nbytes:,} bytes on <code>{escape(self._where())}</code>, session <code>{escape(self._session.name)}</code>"
        )


def upload(session: RemoteJaxSession, array: np.ndarray[Any, Any], *, immutable: bool, dtype: Any = None, shape: Any = None, weak_type: bool = False) -> RemoteTensor:
    """Sends an array, which is copied unless nobody can write to it."""
    kind = element_type(array.dtype)
    there = dense(array)
    copy = there is array and not immutable
    with session._watch.during("upload", "", there.nbytes):
        native = session._native.put(there, there.ctypes.data, there.nbytes, kind, there.shape, copy)
    return RemoteTensor(session, native, array.shape if shape is None else shape, array.dtype if dtype is None else dtype, weak_type)
