"""Functions become programs here, on the client's side: traced, differentiated and lowered by the user's own JAX, and sent as a
portable StableHLO artifact."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax import export as jax_export

from .errors import IncompatibleProgramError
from .tensor import RemoteTensor

Aval = tuple[tuple[int, ...], Any, bool]


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


def aval_of(leaf: Any) -> Aval:
    """Shape, type and weakness of a leaf: an array here or there, a number of Python's."""
    if isinstance(leaf, RemoteTensor):
        return leaf._aval
    if isinstance(leaf, jax.Array):
        dtype = leaf.dtype
        return (leaf.shape, dtype if is_key(dtype) else np.dtype(dtype), bool(getattr(leaf, "weak_type", False)))
    if isinstance(leaf, (bool, int, float, complex)):
        return ((), np.dtype(jax.dtypes.result_type(leaf)), not isinstance(leaf, bool))
    array = leaf if isinstance(leaf, (np.ndarray, np.generic)) else np.asarray(leaf)
    if array.dtype.kind in "OSUMm":
        raise TypeError(f"{type(leaf).__name__} is no array: name its place in static_argnums")
    return (array.shape, np.dtype(jax.dtypes.canonicalize_dtype(array.dtype)), False)


def host_array(leaf: Any, aval: Aval) -> tuple[np.ndarray[Any, Any], bool]:
    """The leaf as an array of numpy's, of the type that JAX would give it, and whether nobody can write to it."""
    if isinstance(leaf, jax.Array):
        return np.asarray(jax.random.key_data(leaf) if is_key(leaf.dtype) else leaf), True
    array = np.asarray(leaf)
    if array.dtype != aval[1]:
        return array.astype(aval[1]), True
    return array, array is not leaf


@functools.cache
def _plain_linear_algebra() -> dict[str, Any]:
    """Options of JAX's export by which ``jax.numpy.linalg`` becomes operations of XLA.

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
        return {}
    option = "_override_lowering_rules"
    return {option: tuple(rules)} if option in inspect.signature(jax_export.export).parameters else {}


def export(
    function: Callable[..., Any], name: str, tree: Any, avals: Sequence[Aval], donated: Sequence[int], platform: str, *, cost: bool = False
) -> Exported:
    """Exports ``function``, which takes what ``tree`` makes of the leaves, for arguments of these shapes and types.

    Raises :class:`IncompatibleProgramError` for what no program can hold, such as callbacks; errors of tracing as they are.
    """

    def flat(*leaves: Any) -> Any:
        arguments, keywords = jax.tree_util.tree_unflatten(tree, leaves)
        return function(*arguments, **keywords)

    flat.__name__ = flat.__qualname__ = name
    jitted = jax.jit(flat, donate_argnums=tuple(donated))
    struct: Any = jax.ShapeDtypeStruct
    specs = [struct(shape, dtype, weak_type=weak) for shape, dtype, weak in avals]
    try:
        exported = jax_export.export(jitted, platforms=[platform], **_plain_linear_algebra())(*specs)
    except (NotImplementedError, ValueError) as error:
        # Tracing raises these for the function's own faults as well: only what is about exporting is about the program.
        if "export" in str(error).lower() or "serializ" in str(error).lower() or "callback" in str(error).lower():
            raise IncompatibleProgramError(f"{name} cannot be exported: {error}") from error
        raise
    if exported.ordered_effects or exported.unordered_effects:
        raise IncompatibleProgramError(f"{name} has effects besides its results: callbacks and prints stay on this side")
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
        analysis = jitted.lower(*specs).cost_analysis()
        analysis = analysis[0] if isinstance(analysis, list) else analysis
        flops = float(analysis["flops"]) if analysis and "flops" in analysis else None
    return Exported(name, bytes(exported.mlir_module_serialized), tuple(exported.module_kept_var_idx), outputs, exported.out_tree, flops)
