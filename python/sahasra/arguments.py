"""Checks of arguments that several calls take, before anything is sent."""

from __future__ import annotations

import re
from typing import Any

from .errors import InvalidArgumentError


def vram_of(vram: Any) -> str:
    """Returns ``vram``, an amount of memory such as ``"512Mi"``.

    Raises :class:`InvalidArgumentError` for other values.
    """
    if not isinstance(vram, str):
        raise InvalidArgumentError(f'argument `vram` must be text such as "512Mi", not {vram!r}: write a whole number with the unit Ki, Mi, Gi or Ti')
    if re.fullmatch("[0-9]+(Ki|Mi|Gi|Ti)", vram) is None:
        raise InvalidArgumentError(f'argument `vram` must be a whole number with the unit Ki, Mi, Gi or Ti, such as "512Mi", not {vram!r}')
    return str(vram)


def seconds_of(name: str, value: Any) -> float:
    """Returns ``value``, a number of seconds, as a float.

    Raises :class:`InvalidArgumentError`, which names the argument, for other values and for negative ones.
    """
    try:
        seconds = -1.0 if isinstance(value, (str, bytes)) else float(value)
    except (TypeError, ValueError, OverflowError):
        seconds = -1.0
    if not seconds >= 0:
        raise InvalidArgumentError(f"argument `{name}` must be a number of seconds from 0, such as 60, not {value!r}")
    return seconds
