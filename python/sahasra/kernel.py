"""PTX kernels on the tensors of a session with ``engine="ptx"``."""

from __future__ import annotations

import operator
import os
import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

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
#: Types of parameters that may be the address of a tensor.
_ADDRESSES = ("u64", "b64", "s64")


class Parameter(NamedTuple):
    """A parameter of a kernel."""

    name: str
    #: PTX type, such as ``f32``; arrays of bytes as ``b8[16]``.
    type: str


def text_of(ptx: Any) -> str:
    """Returns the PTX text, which may be given as ``bytes``.

    Raises :class:`InvalidArgumentError` for other objects, for bytes that are not UTF-8, and for text without an ``.entry``.
    """
    if isinstance(ptx, (bytes, bytearray)):
        try:
            ptx = bytes(ptx).decode()
        except UnicodeDecodeError:
            raise InvalidArgumentError("argument `ptx` is bytes that are not UTF-8: pass PTX text, not a compiled binary") from None
    if not isinstance(ptx, str):
        remedy = "pass its contents, path.read_text()" if isinstance(ptx, os.PathLike) else "pass the contents of a .ptx file"
        raise InvalidArgumentError(f"argument `ptx` must be PTX text, not {type(ptx).__name__}: {remedy}")
    if not entries_of(ptx):
        raise InvalidArgumentError(
            "argument `ptx` has no .entry: pass PTX text. A path is not read: pass the contents of the file, pathlib.Path(path).read_text()"
        )
    return ptx


def entries_of(ptx: str) -> list[str]:
    """Returns the names of the kernels in the text."""
    return re.findall(r"\.entry\s+([\w$%]+)", _without_comments(ptx))


def _without_comments(ptx: str) -> str:
    return re.sub(r"//[^\n]*|/\*.*?\*/", " ", ptx, flags=re.S)


def parameters_of(ptx: str, entry: str) -> list[Parameter]:
    """Returns the names and types of the parameters of an ``.entry``, in order.

    Raises :class:`InvalidArgumentError` when the text has no such entry or a parameter has an unknown type.
    """
    if not isinstance(entry, str):
        names = ", ".join(entries_of(ptx)) or "none"
        raise InvalidArgumentError(f"argument `entry` must be the name of a kernel as text, not {entry!r}: the PTX has {names}")
    text = _without_comments(ptx)
    found = re.search(r"\.entry\s+" + re.escape(entry) + r"(?![\w$])\s*(?:\(([^)]*)\))?", text)
    if found is None:
        names = ", ".join(entries_of(ptx)) or "none"
        raise InvalidArgumentError(f".entry {entry} not found in the PTX; it has: {names}")
    parameters = []
    for parameter in filter(None, (part.strip() for part in (found.group(1) or "").split(","))):
        kind = re.search(r"\.(%s)\b" % "|".join(_SCALARS), parameter)
        if kind is None:
            raise InvalidArgumentError(f"parameter {parameter!r} of {entry} has an unknown type")
        name = re.search(r"(?<![.\w$%])([A-Za-z_$%][\w$%]*)\s*(?:\[[^]]*\])?$", parameter)
        called = name.group(1) if name else ""
        size = re.search(r"\[\s*(0[xX][0-9a-fA-F]+|\d+)U?\s*\]", parameter)
        if size is None:
            parameters.append(Parameter(called, kind.group(1)))
            continue
        # As in C, the prefix 0x means hexadecimal and any other leading 0 octal.
        digits = size.group(1)
        count = int(digits, 16 if digits[:2] in ("0x", "0X") else 8 if digits.startswith("0") else 10)
        parameters.append(Parameter(called, f"{kind.group(1)}[{count}]"))
    return parameters


def scalar_bytes(value: Any, kind: str) -> bytes:
    """Returns the little-endian bytes of a parameter of this type. Array types such as ``b8[16]`` take ``bytes`` of their exact size.

    Raises :class:`InvalidArgumentError` when the value does not fit the type.
    """
    if "[" in kind:
        name, _, count = kind[:-1].partition("[")
        size = int(count) * np.dtype(_SCALARS[name]).itemsize
        if not isinstance(value, (bytes, bytearray)) or len(value) != size:
            raise InvalidArgumentError(f"a parameter {kind} takes {size} bytes: pass bytes(...) of that length, such as array.tobytes()")
        return bytes(value)
    dtype = np.dtype("<" + _SCALARS[kind])
    does_not_fit = f"{value!r} does not fit a parameter of type {kind}"
    if isinstance(value, int):
        # NumPy would convert an integer of more than 64 bits to an object array.
        try:
            number = np.asarray(float(value) if dtype.kind == "f" else value)
        except OverflowError:
            raise InvalidArgumentError(does_not_fit) from None
        if dtype.kind in "iu" and not np.iinfo(dtype).min <= value <= np.iinfo(dtype).max:
            raise InvalidArgumentError(does_not_fit)
    else:
        number = np.asarray(value)
    if number.ndim or number.dtype.kind not in "biuf" or (dtype.kind in "iu" and number.dtype.kind == "f"):
        wanted = "a whole number, or a tensor of the session" if kind in _ADDRESSES else "a whole number" if dtype.kind in "iu" else "a number"
        raise InvalidArgumentError(f"{value!r} is not a value for a parameter of type {kind}: pass {wanted}")
    if dtype.kind in "iu" and not np.iinfo(dtype).min <= int(value) <= np.iinfo(dtype).max:
        raise InvalidArgumentError(does_not_fit)
    with np.errstate(over="ignore"):
        converted = number.astype(dtype)
    if np.isinf(converted) and not np.isinf(number):
        raise InvalidArgumentError(f"{does_not_fit}: the largest is {np.finfo(dtype).max}")
    return converted.tobytes()


def extent(what: str, given: int | Sequence[int]) -> list[int]:
    """Returns the one to three numbers of a ``grid`` or ``block``, given as integers of Python or NumPy.

    Raises :class:`InvalidArgumentError`, which names the argument, unless each number is from 1 to 2³² - 1.
    """
    try:
        numbers = [operator.index(number) for number in (given if isinstance(given, Iterable) else (given,))]
    except TypeError:
        numbers = []
    if not 1 <= len(numbers) <= 3 or any(not 1 <= number < 1 << 32 for number in numbers):
        raise InvalidArgumentError(f"{what}={given!r}: expected one to three whole numbers from 1")
    return numbers


def whole(what: str, value: Any, least: int, most: int) -> int:
    """Returns ``value``, an integer of Python or NumPy from ``least`` to ``most``.

    Raises :class:`InvalidArgumentError`, which names the argument, for other values.
    """
    try:
        number = operator.index(value)
    except TypeError:
        number = least - 1
    if not least <= number <= most:
        raise InvalidArgumentError(f"{what}={value!r}: expected a whole number from {least} to {most}")
    return number


def _three(numbers: list[int]) -> tuple[int, int, int]:
    return (*numbers, 1, 1)[:3]  # type: ignore[return-value]


class RemoteKernel:
    """A kernel in a session: ``kernel(grid, block, x, y, 2.0)`` launches it and returns immediately."""

    def __init__(self, session: RemoteJaxSession, ptx: str | bytes, entry: str) -> None:
        ptx = text_of(ptx)
        declared = parameters_of(ptx, entry)
        self._session = session
        self.entry = entry
        #: PTX types of the kernel's parameters.
        self.parameters = [parameter.type for parameter in declared]
        self._names = [parameter.name for parameter in declared]
        with session._watch.during("compile", entry):
            self._program: _native.Program = session._native.compile(entry, "ptx", ptx.encode())

    def __call__(self, grid: int | Sequence[int], block: int | Sequence[int], *arguments: Any, shared_bytes: int = 0) -> None:
        """Launches ``grid`` blocks of ``block`` threads. Remote tensors are passed as addresses, numbers in the type of the kernel's parameter.

        The kernel returns nothing: it writes to the tensors passed to it. Raises :class:`InvalidArgumentError` for arguments that do not fit the
        kernel's parameters. Failures in the session are raised when a dependent value is read, and by :meth:`RemoteJaxSession.synchronise`.
        """
        if len(arguments) != len(self.parameters):
            declared = ", ".join(f"{name} ({kind})" for name, kind in zip(self._names, self.parameters)) or "none"
            raise InvalidArgumentError(f"{self.entry} takes {len(self.parameters)} arguments after grid and block, not {len(arguments)}: {declared}")
        passed: list[_native.Tensor | bytes] = []
        for place, (argument, kind) in enumerate(zip(arguments, self.parameters)):
            try:
                passed.append(self._passed(argument, kind))
            except InvalidArgumentError as error:
                raise InvalidArgumentError(f"parameter {place + 1} of {self.entry}, {self._names[place]} ({kind}): {error}") from None
        shared = whole("shared_bytes", shared_bytes, 0, (1 << 32) - 1)
        dimensions = _three(extent("grid", grid)), _three(extent("block", block))
        self._session._native.launch(self._program, self.entry, *dimensions, shared, passed)

    def _passed(self, argument: Any, kind: str) -> _native.Tensor | bytes:
        if isinstance(argument, RemoteTensor):
            if kind not in _ADDRESSES:
                raise InvalidArgumentError(f"a tensor is an address of 64 bits, and the parameter is of type {kind}")
            if argument._session is not self._session:
                raise InvalidArgumentError(f"{argument!r} belongs to another session")
            return argument._handle()
        if isinstance(argument, (list, tuple)) or np.ndim(argument):
            what = "a NumPy array" if isinstance(argument, np.ndarray) else f"an object of type {type(argument).__name__}"
            if kind not in _ADDRESSES:
                raise InvalidArgumentError(f"a parameter of type {kind} takes one number, and this is {what}")
            there = "session.put(numpy.asarray(...))" if isinstance(argument, (list, tuple)) else "session.put it"
            raise InvalidArgumentError(f"{what} of this machine has no address there: {there} first")
        return scalar_bytes(argument, kind)

    def __repr__(self) -> str:
        return f"<kernel {self.entry}({', '.join(self.parameters)}) on {self._session.device}>"
