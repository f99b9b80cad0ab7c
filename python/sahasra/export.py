"""Export of functions as programs: the JAX of this process traces, differentiates and lowers them on the client side, and the result is sent
as a portable StableHLO artifact.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from .callbacks import callbacks, described, is_check, lines, rules_for_checks
from .caller import warn
from .elements import native
from .errors import IncompatibleProgramError, InvalidArgumentError
from .tensor import RemoteTensor

#: Oldest JAX version whose exports support static arguments, weak types and linear algebra. pyproject.toml and the guide name it too.
OLDEST_JAX = (0, 6, 2)

if jax.__version_info__ < OLDEST_JAX:
    wanted = ".".join(map(str, OLDEST_JAX))
    raise ImportError(f"sahasra needs JAX {wanted} or later for sessions, and this is {jax.__version__}: pip install 'jax>={wanted}'")

from jax import export as jax_export  # noqa: E402: older ones may not have it

Aval = tuple[tuple[int, ...], Any, bool]

#: Remedy for arguments of functions that are not arrays.
NAME_AS_STATIC = "name its place in static_argnums"

#: Element type of gradients with respect to integers. Such arrays have no values, and JAX keeps them in the memory of this process.
FLOAT0 = jax.dtypes.float0


@dataclass(frozen=True)
class Exported:
    """An exported program and its metadata."""

    name: str
    code: bytes
    #: Positions of the argument leaves that the program takes; it does not use the others.
    kept: tuple[int, ...]
    #: Shape, type and weak-type flag of each result.
    outputs: tuple[Aval, ...]
    #: Tree structure of the results.
    tree: Any
    #: Number of floating-point operations as counted by JAX before compilation, or None if JAX does not count them.
    flops: float | None


def is_key(dtype: Any) -> bool:
    """Returns whether elements of this type are keys of random numbers."""
    return not isinstance(dtype, np.dtype) and jax.numpy.issubdtype(dtype, jax.dtypes.prng_key)


def key_words(dtype: Any) -> tuple[int, ...]:
    """Returns the dimensions of one key of random numbers in 32-bit words."""
    return tuple(dtype._impl.key_shape)


def aval_of(leaf: Any, *, described: bool = False, remedy: str = NAME_AS_STATIC) -> Aval:
    """Returns shape, type and weak-type flag of a leaf: a local or remote array or a Python number; if ``described``, also a ``ShapeDtypeStruct``.

    Raises ``TypeError``, whose message contains the remedy, for leaves that are not arrays of types that JAX has, and :class:`InvalidArgumentError` for values that JAX traces.
    """
    if isinstance(leaf, RemoteTensor):
        return leaf._aval
    if isinstance(leaf, jax.core.Tracer):
        raise InvalidArgumentError(
            f"{leaf} is a value that JAX traces, and a session has no values of a trace: what is under jax.jit, grad or vmap "
            "cannot call a session. Put the transformation inside, as in session.jit(jax.grad(f))"
        )
    if isinstance(leaf, jax.Array):
        dtype = leaf.dtype
        return (leaf.shape, dtype if is_key(dtype) else np.dtype(dtype), bool(getattr(leaf, "weak_type", False)))
    if isinstance(leaf, (bool, int, float, complex)) and not isinstance(leaf, np.generic):
        return ((), np.dtype(jax.dtypes.result_type(leaf)), not isinstance(leaf, bool))
    if isinstance(leaf, jax.ShapeDtypeStruct):
        if not described:
            raise TypeError("a jax.ShapeDtypeStruct has no values: only estimate_jitted takes it in the place of an array")
        # There are no values to convert, so the type is the one that an array of NumPy would get.
        dtype = leaf.dtype if is_key(leaf.dtype) else np.dtype(jax.dtypes.canonicalize_dtype(leaf.dtype))
        return (tuple(leaf.shape), dtype, bool(getattr(leaf, "weak_type", False)))
    is_array = isinstance(leaf, (np.ndarray, np.generic))
    array = leaf if is_array else np.asarray(leaf)
    if array.dtype == FLOAT0:
        return (array.shape, array.dtype, False)
    if array.dtype.kind in "OSUMm":
        if is_array:
            # An array of NumPy cannot be hashed, and so cannot be static.
            other = "" if isinstance(leaf, np.ndarray) and remedy == NAME_AS_STATIC else f", or {remedy}"
            raise TypeError(f"{type(leaf).__name__} of dtype {array.dtype}, which JAX does not have: convert it to numbers{other}")
        raise TypeError(f"{type(leaf).__name__} is not an array: {remedy}")
    return (array.shape, np.dtype(jax.dtypes.canonicalize_dtype(native(array))), False)


def host_array(leaf: Any, aval: Aval) -> tuple[np.ndarray[Any, Any], bool]:
    """Returns the leaf as a NumPy array of the type that JAX gives it, and whether the array is immutable, so that its memory can be sent without
    a copy.

    Raises ``OverflowError`` for a Python integer out of the type's range, as JAX does.
    """
    if isinstance(leaf, jax.Array):
        return np.asarray(jax.random.key_data(leaf) if is_key(leaf.dtype) else leaf), True
    if isinstance(leaf, int) and not isinstance(leaf, (bool, np.generic)):
        limits = np.iinfo(aval[1])
        if not limits.min <= leaf <= limits.max:
            raise OverflowError(f"{leaf} is out of range for {aval[1]}, the type that JAX gives to Python integers")
    array = np.asarray(leaf)
    if array.dtype == FLOAT0:
        # A program takes booleans in place of ``float0`` values, and does not read them.
        return np.zeros(array.shape, np.bool_), True
    if array.dtype != aval[1]:
        return array.astype(aval[1]), True
    # NumPy allocates a new array for these types. For all others (a memory map, a memoryview, a tensor of another library) the array may share the
    # memory of the leaf.
    return array, type(leaf) in (list, tuple) or isinstance(leaf, (bool, int, float, complex, np.generic))


@functools.cache
def _plain_linear_algebra() -> tuple[Any, ...]:
    """Returns lowering rules for JAX's export with which ``jax.numpy.linalg`` becomes plain XLA operations.

    By default JAX lowers linear algebra to calls of LAPACK or cuSOLVER, which its own packages contain and a session's plugin does not. For
    platforms without these libraries JAX has algorithms that need none, except for ``eig``, ``schur`` and ``hessenberg``. The selection is not
    part of JAX's public API. If a JAX version has moved the internals used here, no rules are returned, and the session rejects the call by name.
    """
    try:
        from jax._src.interpreters import mlir
        from jax._src.lax import linalg
        from jax._src.tpu.linalg import eigh, svd  # noqa: F401: they register what is looked up below

        elsewhere = mlir._platform_specific_lowerings["tpu"]
        rules = []
        for name in (
            "cholesky", "cholesky_update", "eigh", "geqrf", "householder_product", "lu", "lu_pivots_to_permutation", "ormqr", "svd",
            "symmetric_product", "triangular_solve", "tridiagonal_solve",
        ):  # fmt: skip
            primitive: Any = getattr(linalg, f"{name}_p", None)
            rule = mlir._lowerings.get(primitive) or elsewhere.get(primitive)
            if rule is not None:
                rules.append((primitive, getattr(rule, "rule", rule)))
    except (ImportError, AttributeError, KeyError):
        return ()
    return tuple(rules)


def _overriding(rules: tuple[Any, ...]) -> dict[str, Any]:
    """Returns the keyword argument of JAX's export for these rules, or no argument if JAX does not have that option."""
    option = "_override_lowering_rules"
    return {option: rules} if rules and option in inspect.signature(jax_export.export).parameters else {}


def _without_locations() -> contextlib.AbstractContextManager[Any]:
    """Omits source lines from programs, so that the same function at another line is the same program and is compiled once.

    JAX 0.6 keeps the innermost line: the function may be called from anywhere, but becomes another program if it moves to another line.
    """
    try:
        from jax._src.config import traceback_in_locations_limit
    except ImportError:
        return contextlib.nullcontext()
    without: contextlib.AbstractContextManager[Any] = traceback_in_locations_limit(0)
    return without


def trace_context() -> Any:
    """Returns the part of JAX's configuration on which a trace depends, such as ``jax_enable_x64``. A change of it causes functions to be traced
    again.
    """
    return _trace_context()


def _of_configuration() -> Any:
    # Fallback for JAX versions that have moved ``trace_context``: the options documented to change the result of a trace.
    names = ("enable_x64", "numpy_dtype_promotion", "numpy_rank_promotion", "default_matmul_precision", "threefry_partitionable", "default_prng_impl")
    return tuple(getattr(jax.config, f"jax_{name}", None) for name in names)


try:
    from jax._src.config import trace_context as _trace_context
except ImportError:
    _trace_context = _of_configuration


def _refuse_callbacks(name: str, jaxpr: Any) -> bool:
    """Raises :class:`IncompatibleProgramError` for calls into Python.

    Checks of Equinox are accepted with a warning that they give NaN where they fail. Returns whether there are any.
    """
    found = list(callbacks(jaxpr))
    refused = [call for call in found if not is_check(call)]
    rules = rules_for_checks()
    if refused or (found and not rules):
        which = "; ".join(dict.fromkeys(described(call) for call in refused or found))
        raise IncompatibleProgramError(
            f"{name} cannot be exported: {which} calls back into this process, and no program of a session can. Leave it out, or call it between programs"
        )
    if found:
        warn(f"{name} has checks of Equinox that cannot raise from a session, and give NaN as with EQX_ON_ERROR=nan where they fail: {lines(found)}", RuntimeWarning)
    return bool(found)


def export(
    function: Callable[..., Any],
    name: str,
    arguments: Sequence[Any],
    keywords: Mapping[str, Any],
    donated: Iterable[int],
    donated_names: Iterable[str],
    platform: str,
    *,
    cost: bool = False,
) -> Exported:
    """Exports ``function`` for arguments of these shapes and types, given as pytrees of ``ShapeDtypeStruct``.

    Raises :class:`IncompatibleProgramError` for functions that cannot become a program, such as those with callbacks. Errors of tracing are
    raised unchanged.
    """
    function.__name__ = function.__qualname__ = name
    jitted = jax.jit(function, donate_argnums=tuple(donated), donate_argnames=tuple(donated_names))
    with _without_locations():
        # Errors up to this line come from the function itself; later errors concern the program.
        traced = jitted.trace(*arguments, **keywords)
        rules = _plain_linear_algebra() + tuple(rules_for_checks() if _refuse_callbacks(name, traced.jaxpr) else ())
        try:
            exported = jax_export.export(jitted, platforms=[platform], **_overriding(rules))(*arguments, **keywords)
        except (NotImplementedError, ValueError) as error:
            raise IncompatibleProgramError(f"{name} cannot be exported: {error}") from error
    if exported.ordered_effects or exported.unordered_effects:
        effects = ", ".join(str(effect) for effect in (*exported.ordered_effects, *exported.unordered_effects))
        raise IncompatibleProgramError(f"{name} has effects besides its results: {effects}")
    if exported.nr_devices != 1:
        raise IncompatibleProgramError(f"{name} runs on {exported.nr_devices} devices, a session has one")
    for aval in exported.out_avals:
        if not all(isinstance(dimension, int) for dimension in aval.shape):
            raise IncompatibleProgramError(f"a result of {name} has no fixed shape: {aval}")
    outputs = tuple(
        (tuple(aval.shape), aval.dtype if is_key(aval.dtype) else np.dtype(aval.dtype), bool(getattr(aval, "weak_type", False)))
        for aval in exported.out_avals
    )
    flops = None
    if cost:
        analysis = traced.lower().cost_analysis()
        analysis = analysis[0] if isinstance(analysis, list) else analysis
        flops = float(analysis["flops"]) if analysis and "flops" in analysis else None
    return Exported(name, bytes(exported.mlir_module_serialized), tuple(exported.module_kept_var_idx), outputs, exported.out_tree, flops)
