"""Conversion between the element types of NumPy and those of XLA."""

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
    """Returns XLA's name of a NumPy type, such as ``bf16``.

    Raises :class:`InvalidArgumentError` for types that sessions do not support.
    """
    name = _TO_XLA.get(dtype.name)
    if name is None:
        raise InvalidArgumentError(f"arrays of {dtype} cannot be sent to a session")
    return name


_FROM_XLA = {xla: name for name, xla in _TO_XLA.items()}


def dtype_of(name: str) -> np.dtype[Any]:
    """Returns the NumPy type for XLA's name of a type.

    Raises :class:`InvalidArgumentError` for unknown names.
    """
    found = _FROM_XLA.get(name)
    if found is None:
        raise InvalidArgumentError(f"unknown element type {name}")
    return np.dtype(getattr(ml_dtypes, found, found))


def native(array: np.ndarray[Any, Any] | np.generic) -> np.dtype[Any]:
    """Returns the array's type in the byte order of this machine, which is that of every session.

    Raises :class:`InvalidArgumentError` for masked arrays, because sessions do not support masks.
    """
    if isinstance(array, np.ma.MaskedArray):
        raise InvalidArgumentError("a masked array would lose its mask: use array.filled(...), or send array.data and array.mask apart")
    dtype: np.dtype[Any] = array.dtype if array.dtype.isnative else array.dtype.newbyteorder("=")
    return dtype


def dense(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Returns the array in row-major order and the byte order of this machine. It is copied only if it is not in that form already."""
    if array.dtype.byteorder not in "=|<":
        array = array.astype(array.dtype.newbyteorder("="))
    # numpy.ascontiguousarray would make a scalar one-dimensional.
    return array if array.flags.c_contiguous else np.array(array, order="C", copy=True)
