"""Types of elements: numpy's and XLA's names for the same thing."""

from __future__ import annotations

import functools
from typing import Any

import ml_dtypes
import numpy as np

from .errors import InvalidArgumentError

_TO_XLA: dict[str, str] = {
    "bool": "pred",
    "int8": "s8",
    "int16": "s16",
    "int32": "s32",
    "int64": "s64",
    "uint8": "u8",
    "uint16": "u16",
    "uint32": "u32",
    "uint64": "u64",
    "float16": "f16",
    "float32": "f32",
    "float64": "f64",
    "bfloat16": "bf16",
    "complex64": "c64",
    "complex128": "c128",
    "float8_e3m4": "f8e3m4",
    "float8_e4m3": "f8e4m3",
    "float8_e4m3b11fnuz": "f8e4m3b11fnuz",
    "float8_e4m3fn": "f8e4m3fn",
    "float8_e4m3fnuz": "f8e4m3fnuz",
    "float8_e5m2": "f8e5m2",
    "float8_e5m2fnuz": "f8e5m2fnuz",
    "float8_e8m0fnu": "f8e8m0fnu",
}


@functools.cache
def element_type(dtype: np.dtype[Any]) -> str:
    """XLA's name of a numpy type, such as ``bf16``.

    Raises :class:`InvalidArgumentError` for types that no session holds.
    """
    name = _TO_XLA.get(dtype.name)
    if name is None:
        raise InvalidArgumentError(f"arrays of {dtype} cannot be sent to a session")
    return name


_FROM_XLA = {xla: name for name, xla in _TO_XLA.items()}


def dtype_of(name: str) -> np.dtype[Any]:
    """The numpy type of XLA's name."""
    found = _FROM_XLA.get(name)
    if found is None:
        raise InvalidArgumentError(f"elements of type {name} are not known here")
    return np.dtype(getattr(ml_dtypes, found, found))


def native(array: np.ndarray[Any, Any] | np.generic) -> np.dtype[Any]:
    """The array's type in this machine's byte order, which is that of every session.

    Raises :class:`InvalidArgumentError` for masked arrays: nothing there knows of a mask.
    """
    if isinstance(array, np.ma.MaskedArray):
        raise InvalidArgumentError("a masked array would lose its mask: use array.filled(...), or send array.data and array.mask apart")
    dtype: np.dtype[Any] = array.dtype if array.dtype.isnative else array.dtype.newbyteorder("=")
    return dtype


def dense(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The array in row-major order and this machine's byte order; a copy only where it is not."""
    if array.dtype.byteorder not in "=|<":
        array = array.astype(array.dtype.newbyteorder("="))
    # ascontiguousarray would make a scalar one-dimensional.
    return array if array.flags.c_contiguous else np.array(array, order="C", copy=True)
