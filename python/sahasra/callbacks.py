"""Calls of a traced function into Python, which programs of a session cannot make: their detection, their source lines for messages, and a
replacement for the checks of Equinox.
"""

from __future__ import annotations

import pathlib
import sysconfig
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

#: Public names of the JAX primitives that call into Python.
_CALLS = {
    "pure_callback": "jax.pure_callback",
    "io_callback": "jax.experimental.io_callback",
    "debug_callback": "jax.debug.callback",
    "debug_print": "jax.debug.print",
}
_OURS = str(pathlib.Path(__file__).parent)
_JAX = str(pathlib.Path(jax.__file__).parent)
_PACKAGES = tuple({sysconfig.get_path("purelib"), sysconfig.get_path("platlib")})


class Call(NamedTuple):
    """A call into Python."""

    equation: Any
    #: Enclosing equations (calls, branches, loops), innermost first.
    around: tuple[Any, ...]


def callbacks(jaxpr: Any, around: tuple[Any, ...] = ()) -> Iterator[Call]:
    """Yields the calls into Python in this jaxpr and in the jaxprs nested in it."""
    for equation in jaxpr.eqns:
        if equation.primitive.name in _CALLS or "callback" in equation.params:
            yield Call(equation, around)
        for value in equation.params.values():
            for inner in value if isinstance(value, (tuple, list)) else (value,):
                # A closed jaxpr wraps the jaxpr in an attribute.
                inner = getattr(inner, "jaxpr", inner)
                if hasattr(inner, "eqns"):
                    yield from callbacks(inner, (equation, *around))


def _function(equation: Any) -> Any:
    """Returns the Python function of a callback, if JAX provides it."""
    given = equation.params.get("callback")
    return getattr(given, "callback_func", given)


def _line(call: Call) -> str:
    """Returns the source line of the call: the innermost one in the caller's own code, else in the library that makes the call; empty if unknown."""
    # The traceback of an equation ends at the function that JAX traced; the enclosing equations provide the frames beyond.
    frames = [frame for equation in (call.equation, *call.around) for frame in getattr(equation.source_info.traceback, "frames", None) or ()]
    outside = [frame for frame in frames if not frame.file_name.startswith((_JAX, _OURS))]
    own = [frame for frame in outside if not frame.file_name.startswith(_PACKAGES)]
    return next((f"{frame.file_name}:{frame.line_num} in {frame.function_name}" for frame in own or outside), "")


def described(call: Call) -> str:
    """Returns the name of the call and its source line, for messages."""
    name: str = call.equation.primitive.name
    function = getattr(_function(call.equation), "__name__", "") if name in ("pure_callback", "io_callback") else ""
    line = _line(call)
    return _CALLS.get(name, name) + (f" of {function}" if function else "") + (f" at {line}" if line else "")


def lines(calls: Iterable[Call]) -> str:
    """Returns the source lines of the calls, without duplicates."""
    return "; ".join(dict.fromkeys(line for line in map(_line, calls) if line))


def is_check(call: Call) -> bool:
    """Returns whether the call is ``equinox.error_if``, which calls back only to raise an error."""
    return call.equation.primitive.name == "pure_callback" and getattr(_function(call.equation), "__module__", "") == "equinox._errors"


def _filled(*_: Any, result_avals: Any, **__: Any) -> list[Any]:
    """Returns the values that Equinox substitutes for a checked value if the check cannot raise, as with ``EQX_ON_ERROR=nan``."""

    def fill(dtype: Any) -> Any:
        if jnp.issubdtype(dtype, np.inexact):
            return np.nan
        return np.iinfo(dtype).max if np.issubdtype(dtype, np.integer) else True

    return [jnp.full(aval.shape, fill(aval.dtype), aval.dtype) for aval in result_avals]


def rules_for_checks() -> list[tuple[Any, Callable[..., Any]]]:
    """Returns lowering rules for JAX's export with which the checks of Equinox give NaN.

    The list is empty if the JAX version has moved the internals that the rules use.
    """
    try:
        from jax._src.callback import pure_callback_p
        from jax._src.interpreters import mlir

        return [(pure_callback_p, mlir.lower_fun(_filled, multiple_results=True))]
    except (ImportError, AttributeError):
        return []
