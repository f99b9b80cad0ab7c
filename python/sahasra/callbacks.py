"""Calls of a traced function into Python, which no program of a session can make: where they are, and the checks of Equinox, for which there
is something to put in their place."""

from __future__ import annotations

import pathlib
import sysconfig
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

#: What users call the primitives of JAX.
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
    #: Equations that it is inside, from within: calls, branches, loops.
    around: tuple[Any, ...]


def callbacks(jaxpr: Any, around: tuple[Any, ...] = ()) -> Iterator[Call]:
    """Calls into Python of this jaxpr and those inside it."""
    for equation in jaxpr.eqns:
        if equation.primitive.name in _CALLS or "callback" in equation.params:
            yield Call(equation, around)
        for value in equation.params.values():
            for inner in value if isinstance(value, (tuple, list)) else (value,):
                # Closed ones have it inside.
                inner = getattr(inner, "jaxpr", inner)
                if hasattr(inner, "eqns"):
                    yield from callbacks(inner, (equation, *around))


def _function(equation: Any) -> Any:
    """The function that is called back, where JAX says."""
    given = equation.params.get("callback")
    return getattr(given, "callback_func", given)


def _line(call: Call) -> str:
    """Where the call is written: in the caller's own code where there is some, else in the library that has it."""
    # JAX keeps the frames of each equation up to the function that it was traced with.
    frames = [frame for equation in (call.equation, *call.around) for frame in getattr(equation.source_info.traceback, "frames", None) or ()]
    outside = [frame for frame in frames if not frame.file_name.startswith((_JAX, _OURS))]
    own = [frame for frame in outside if not frame.file_name.startswith(_PACKAGES)]
    return next((f"{frame.file_name}:{frame.line_num} in {frame.function_name}" for frame in own or outside), "")


def described(call: Call) -> str:
    """The call and its line."""
    name: str = call.equation.primitive.name
    function = getattr(_function(call.equation), "__name__", "") if name in ("pure_callback", "io_callback") else ""
    line = _line(call)
    return _CALLS.get(name, name) + (f" of {function}" if function else "") + (f" at {line}" if line else "")


def lines(calls: Iterable[Call]) -> str:
    """Where they are, each once."""
    return "; ".join(dict.fromkeys(line for line in map(_line, calls) if line))


def is_check(call: Call) -> bool:
    """Whether it is ``equinox.error_if``, which calls back only to raise."""
    return call.equation.primitive.name == "pure_callback" and getattr(_function(call.equation), "__module__", "") == "equinox._errors"


def _filled(*_: Any, result_avals: Any, **__: Any) -> list[Any]:
    """What Equinox has in the place of a checked value where it cannot raise: its ``EQX_ON_ERROR=nan``."""

    def fill(dtype: Any) -> Any:
        if jnp.issubdtype(dtype, np.inexact):
            return np.nan
        return np.iinfo(dtype).max if np.issubdtype(dtype, np.integer) else True

    return [jnp.full(aval.shape, fill(aval.dtype), aval.dtype) for aval in result_avals]


def rules_for_checks() -> list[tuple[Any, Callable[..., Any]]]:
    """Options of JAX's export by which the checks of Equinox give NaN; none where a version of JAX has moved what is looked for."""
    try:
        from jax._src.callback import pure_callback_p
        from jax._src.interpreters import mlir

        return [(pure_callback_p, mlir.lower_fun(_filled, multiple_results=True))]
    except (ImportError, AttributeError):
        return []
