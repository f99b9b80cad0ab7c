"""Warnings that are attributed to the caller's line."""

from __future__ import annotations

import sys
import warnings


def warn(message: str, category: type[Warning]) -> None:
    """Warns at the innermost line of the stack that belongs neither to this package nor to JAX."""
    level = 2
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in ("sahasra", "jax"):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, category, stacklevel=level)
