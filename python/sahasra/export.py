"""Functions become programs here, on the client's side: traced, differentiated and lowered by the user's own JAX, and sent as a
portable StableHLO artifact."""

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

#: The oldest JAX whose exports hold static arguments, weak types and linear algebra. pyproject.toml and the guide name it too.
OLDEST_JAX = (0, 6, 2)

if jax.__version_info__ < OLDEST_JAX:
    wanted = ".".join(map(str, OLDEST_JAX))
    raise ImportError(f"sahasra needs JAX {wanted} or later for sessions, and this is {jax.__version__}: pip install 'jax>={wanted}'")

from jax import export as jax_export  # noqa: E402: older ones may not have it

Aval = tuple[tuple[int, ...], Any, bool]

#: What gradients with respect to integers are of: they have no values, and JAX keeps them in the memory of this process.
FLOAT0 = jax.dtypes.float0


@dataclass(frozen=True)
class Exported:
    """A program, and what is to be known beside it."""

    name: str
    code: bytes
    #: Places among the leaves of the arguments that the program takes: it has no use for the others.
    kept: tuple[int, ...]
    #: Shape, type and weakness of each result.
    outputs: tuple[Aval, ...]
    #: How the results were put together.
    tree: Any
    #: Floating-point operations as JAX counts them before compiling, where it does.
    flops: float | None


def is_key(dtype: Any) -> bool:
    """Whether elements are keys of random numbers."""
    return not isinstance(dtype, np.dtype) and jax.numpy.issubdtype(dtype, jax.dtypes.prng_key)


def key_words(dtype: Any) -> tuple[int, ...]:
    """Dimensions that a key takes in words of 32 bits."""
    return tuple(dtype._impl.key_shape)


def aval_of(leaf: Any, *, described: bool = False) -> Aval:
    """Shape, type and weakness of a leaf: an array here or there, a number of Python's; where ``described``, a ``ShapeDtypeStruct`` too."""
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
        return (tuple(leaf.shape), leaf.dtype if is_key(leaf.dtype) else np.dtype(leaf.dtype), bool(getattr(leaf, "weak_type", False)))
    array = leaf if isinstance(leaf, (np.ndarray, np.generic)) else np.asarray(leaf)
    if array.dtype == FLOAT0:
        return (array.shape, array.dtype, False)
    if array.dtype.kind in "OSUMm":
        raise TypeError(f"{type(leaf).__name__} is no array: name its place in static_argnums")
    return (array.shape, np.dtype(jax.dtypes.canonicalize_dtype(native(array))), False)


def host_array(leaf: Any, aval: Aval) -> tuple[np.ndarray[Any, Any], bool]:
    """The leaf as an array of numpy's, of the type that JAX would give it, and whether it is immutable: its memory is then sent as it is.

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
        # A program takes booleans in their place, and looks at none.
        return np.zeros(array.shape, np.bool_), True
    if array.dtype != aval[1]:
        return array.astype(aval[1]), True
    # Of these numpy makes a new array. Of all others (a memory map, a memoryview, a tensor of another library) it may have the memory of the leaf.
    return array, type(leaf) in (list, tuple) or isinstance(leaf, (bool, int, float, complex, np.generic))


@functools.cache
def _plain_linear_algebra() -> tuple[Any, ...]:
    """Rules of JAX's export by which ``jax.numpy.linalg`` becomes operations of XLA.

    JAX calls LAPACK or cuSOLVER for it, which its own packages bring and a session's plugin does not have. For platforms without them it
    has algorithms that need none; ``eig``, ``schur`` and ``hessenberg`` have no such one. JAX keeps the choice to itself: where a version
    of it has moved what is looked for, nothing is chosen, and the session refuses the call by its name.
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
    """JAX's option for them, where it has it."""
    option = "_override_lowering_rules"
    return {option: rules} if rules and option in inspect.signature(jax_export.export).parameters else {}


def _without_locations() -> contextlib.AbstractContextManager[Any]:
    """Leaves the lines of the source out of programs: the same function from another line is the same program, and is compiled once.

    JAX 0.6 leaves the innermost line in: there it may be called from anywhere, but is another program when it is written elsewhere.
    """
    try:
        from jax._src.config import traceback_in_locations_limit
    except ImportError:
        return contextlib.nullcontext()
    without: contextlib.AbstractContextManager[Any] = traceback_in_locations_limit(0)
    return without


def trace_context() -> Any:
    """What of JAX's configuration a trace depends on, such as ``jax_enable_x64``: a function is traced again where it has changed."""
    return _trace_context()


def _of_configuration() -> Any:
    # For a version of JAX that has moved its own: what is documented to change what a function is traced to.
    names = ("enable_x64", "numpy_dtype_promotion", "numpy_rank_promotion", "default_matmul_precision", "threefry_partitionable", "default_prng_impl")
    return tuple(getattr(jax.config, f"jax_{name}", None) for name in names)


try:
    from jax._src.config import trace_context as _trace_context
except ImportError:
    _trace_context = _of_configuration


def _refuse_callbacks(name: str, jaxpr: Any) -> bool:
    """Raises for calls into Python. Gives whether there are checks of Equinox, and warns of what becomes of them."""
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
    """Exports ``function`` for arguments of these shapes and types: pytrees of ``ShapeDtypeStruct``.

    Raises :class:`IncompatibleProgramError` for what no program can hold, such as callbacks; errors of tracing as they are.
    """
    function.__name__ = function.__qualname__ = name
    jitted = jax.jit(function, donate_argnums=tuple(donated), donate_argnames=tuple(donated_names))
    with _without_locations():
        # What goes wrong here is the function's own fault; what goes wrong later is about the program.
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
