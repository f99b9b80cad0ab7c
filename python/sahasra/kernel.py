"""Kernels in PTX on the tensors of a session of engine ``ptx``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from . import _native
from .errors import InvalidArgumentError
from .tensor import RemoteTensor

if TYPE_CHECKING:
    from .session import RemoteJaxSession

_SCALARS = {
    "u8": "u1", "u16": "u2", "u32": "u4", "u64": "u8", "s8": "i1", "s16": "i2", "s32": "i4", "s64": "i8",
    "b8": "u1", "b16": "u2", "b32": "u4", "b64": "u8", "f16": "f2", "f32": "f4", "f64": "f8",
}  # fmt: skip


def parameters_of(ptx: str, entry: str) -> list[str]:
    """Types of the parameters of an ``.entry``, such as ``["u64", "f32"]``; arrays of bytes as ``b8[16]``.

    Raises :class:`InvalidArgumentError` when the text has no such entry.
    """
    text = re.sub(r"//[^\n]*|/\*.*?\*/", " ", ptx, flags=re.S)
    found = re.search(r"\.entry\s+" + re.escape(entry) + r"(?![\w$])\s*(?:\(([^)]*)\))?", text)
    if found is None:
        names = ", ".join(re.findall(r"\.entry\s+([\w$%]+)", text)) or "none"
        raise InvalidArgumentError(f"the PTX has no .entry {entry}; it has: {names}")
    types = []
    for parameter in filter(None, (part.strip() for part in (found.group(1) or "").split(","))):
        kind = re.search(r"\.(%s)\b" % "|".join(_SCALARS), parameter)
        if kind is None:
            raise InvalidArgumentError(f"parameter {parameter!r} of {entry} has a type that is not known")
        size = re.search(r"\[(\d+)\]", parameter)
        types.append(f"{kind.group(1)}[{size.group(1)}]" if size else kind.group(1))
    return types


def scalar_bytes(value: Any, kind: str) -> bytes:
    """Little-endian bytes of a scalar parameter of that type.

    Raises :class:`InvalidArgumentError` when the value is none of that type.
    """
    if "[" in kind:
        size = int(kind[kind.index("[") + 1 : -1])
        if not isinstance(value, (bytes, bytearray)) or len(value) != size:
            raise InvalidArgumentError(f"a parameter {kind} takes {size} bytes")
        return bytes(value)
    dtype = np.dtype("<" + _SCALARS[kind])
    number = np.asarray(value)
    if number.ndim or number.dtype.kind not in "biuf" or (dtype.kind in "iu" and number.dtype.kind == "f"):
        raise InvalidArgumentError(f"{value!r} is no value for a parameter of type {kind}")
    if dtype.kind in "iu" and not np.iinfo(dtype).min <= int(value) <= np.iinfo(dtype).max:
        raise InvalidArgumentError(f"{value!r} does not fit a parameter of type {kind}")
    return number.astype(dtype).tobytes()


def _extent(given: int | Sequence[int]) -> tuple[int, int, int]:
    numbers = (given,) if isinstance(given, int) else tuple(int(number) for number in given)
    if not 1 <= len(numbers) <= 3 or any(not 1 <= number < 1 << 32 for number in numbers):
        raise InvalidArgumentError(f"{given!r} is no grid or block: one to three numbers from 1")
    return (*numbers, 1, 1)[:3]  # type: ignore[return-value]


class RemoteKernel:
    """A kernel in a session: ``kernel(grid, block, x, y, 2.0)`` launches it and returns at once."""

    def __init__(self, session: RemoteJaxSession, ptx: str, entry: str) -> None:
        self._session = session
        self.entry = entry
        #: Types of its parameters.
        self.parameters = parameters_of(ptx, entry)
        with session._watch.during("compile", entry):
            self._program: _native.Program = session._native.compile(entry, "ptx", ptx.encode())

    def __call__(self, grid: int | Sequence[int], block: int | Sequence[int], *arguments: Any, shared_bytes: int = 0) -> None:
        """Launches ``grid`` blocks of ``block`` threads; remote tensors are passed as their addresses, numbers by the parameter's type.

        What it writes is in the tensors that it was given. Raises :class:`InvalidArgumentError` for arguments that are not the kernel's;
        failures there come with the next look at a value.
        """
        if len(arguments) != len(self.parameters):
            raise InvalidArgumentError(f"{self.entry} takes {len(self.parameters)} arguments, not {len(arguments)}")
        passed: list[_native.Tensor | bytes] = []
        for argument, kind in zip(arguments, self.parameters):
            if isinstance(argument, RemoteTensor):
                if kind not in ("u64", "b64", "s64"):
                    raise InvalidArgumentError(f"a tensor is an address of 64 bits, and the parameter is of type {kind}")
                if argument._session is not self._session:
                    raise InvalidArgumentError(f"{argument!r} is of another session")
                passed.append(argument._handle())
            elif isinstance(argument, np.ndarray) and argument.ndim:
                raise InvalidArgumentError("an array of this machine has no address there: session.put it first")
            else:
                passed.append(scalar_bytes(argument, kind))
        self._session._native.launch(self._program, self.entry, _extent(grid), _extent(block), shared_bytes, passed)

    def __repr__(self) -> str:
        return f"<kernel {self.entry}({', '.join(self.parameters)}) on {self._session.device}>"
