"""Equality of every function of `jax.numpy` in `tensor.__array_namespace__()` with the original."""

import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sahasra
from sahasra.namespace import OF_PROCESS, OF_TYPES, READERS

pytestmark = pytest.mark.only_up("they are functions of session.jit, which runs on every pool")

#: Arrays of each kind: floats in (0, 1), integers, bytes, booleans, complex, a vector, a square matrix, its symmetric part.
ARRAYS = {
    "f": np.linspace(0.1, 0.9, 12, dtype=np.float32).reshape(3, 4),
    "i": np.arange(1, 13, dtype=np.int32).reshape(3, 4),
    "u": np.arange(12, dtype=np.uint8).reshape(3, 4),
    "b": np.arange(12).reshape(3, 4) % 3 == 0,
    "c": (np.linspace(0.1, 0.9, 12) + 0.5j).astype(np.complex64).reshape(3, 4),
    "v": np.array([0.25, 0.5, 0.75, 1.5], np.float32),
    "m": np.array([[4, 1, 0], [1, 3, 1], [0, 1, 2]], np.float32),
    "s": np.float32(0.5),
}

OF_ONE = """
    abs absolute acos acosh all amax amin angle any arccos arccosh arcsin arcsinh arctan arctanh argmax argmin argsort around asarray array asin
    asinh atan atanh atleast_1d atleast_2d atleast_3d average broadcast_arrays cbrt ceil conj conjugate copy corrcoef cos cosh count_nonzero cov cumprod
    cumsum deg2rad degrees diag diagflat diagonal diff ediff1d empty_like exp exp2 expm1 fabs flip fliplr flipud floor frexp gradient i0 imag iscomplex isfinite
    isinf isnan isneginf isposinf isreal log log10 log1p log2 logical_not matrix_transpose max mean median min modf nan_to_num nanargmax nanargmin nancumprod
    nancumsum nanmax nanmean nanmedian nanmin nanprod nanstd nansum nanvar negative ones_like positive prod ptp rad2deg radians ravel real reciprocal rint
    rot90 round sign signbit sin sinc sinh sort sort_complex spacing sqrt square squeeze std sum tan tanh trace transpose trapezoid tril triu trunc unwrap var
    vstack hstack dstack column_stack concatenate stack block unstack zeros_like tril_indices_from triu_indices_from
"""
OF_TWO = """
    add allclose arctan2 array_equal array_equiv atan2 copysign divide divmod equal float_power floor_divide fmax fmin fmod greater greater_equal heaviside hypot
    isclose less less_equal logaddexp logaddexp2 logical_and logical_or logical_xor maximum minimum mod multiply nextafter not_equal pow power remainder subtract
    true_divide inner kron vdot vecdot isin append
"""
OF_WHOLE = "bitwise_and bitwise_left_shift bitwise_or bitwise_right_shift bitwise_xor gcd lcm left_shift right_shift"
TABLE = {
    **{name: (lambda xp, a, name=name: getattr(xp, name)(a["f"])) for name in OF_ONE.split()},
    **{name: (lambda xp, a, name=name: getattr(xp, name)(a["f"], a["f"][::-1])) for name in OF_TWO.split()},
    **{name: (lambda xp, a, name=name: getattr(xp, name)(a["i"], 3)) for name in OF_WHOLE.split()},
    **{name: (lambda xp, a, name=name: getattr(xp, name)(a["i"])) for name in ("bitwise_count", "bitwise_invert", "bitwise_not", "invert")},
    "apply_along_axis": lambda xp, a: xp.apply_along_axis(jnp.sum, 0, a["f"]),
    "apply_over_axes": lambda xp, a: xp.apply_over_axes(jnp.sum, a["f"], [0, 1]),
    "arange": lambda xp, a: [xp.arange(5), xp.arange(0.0, 1.0, 0.1), xp.arange(-0.0, 3.0), xp.arange(2, 9, 3, dtype="int8")],
    "argpartition": lambda xp, a: xp.argpartition(a["v"], 2),
    "argwhere": lambda xp, a: xp.argwhere(a["b"], size=4),
    "array_split": lambda xp, a: xp.array_split(a["v"], 3),
    "astype": lambda xp, a: xp.astype(a["f"], xp.bfloat16),
    "bartlett": lambda xp, a: xp.bartlett(5),
    "bincount": lambda xp, a: xp.bincount(a["i"].ravel(), length=13),
    "blackman": lambda xp, a: xp.blackman(5),
    "broadcast_to": lambda xp, a: xp.broadcast_to(a["v"], (2, 4)),
    "choose": lambda xp, a: xp.choose(np.array([0, 1, 0, 1]), [a["v"], -a["v"]], mode="clip"),
    "clip": lambda xp, a: xp.clip(a["f"], 0.2, 0.5),
    "concat": lambda xp, a: xp.concat([a["f"], a["f"]], axis=1),
    "convolve": lambda xp, a: xp.convolve(a["v"], a["v"], mode="same"),
    "correlate": lambda xp, a: xp.correlate(a["v"], a["v"], mode="full"),
    "cross": lambda xp, a: xp.cross(a["m"][0], a["m"][1]),
    "cumulative_prod": lambda xp, a: xp.cumulative_prod(a["v"], include_initial=True),
    "cumulative_sum": lambda xp, a: xp.cumulative_sum(a["f"], axis=1),
    "delete": lambda xp, a: [xp.delete(a["v"], 1), xp.delete(a["f"], np.array([0, 2]), axis=1)],
    "diag_indices_from": lambda xp, a: xp.diag_indices_from(a["m"]),
    "diag_indices": lambda xp, a: xp.diag_indices(3),
    "digitize": lambda xp, a: xp.digitize(a["v"], np.array([0.3, 0.6])),
    "dot": lambda xp, a: xp.dot(a["f"], a["v"]),
    "dsplit": lambda xp, a: xp.dsplit(a["f"].reshape(1, 3, 4), 2),
    "einsum": lambda xp, a: xp.einsum("ij,j->i", a["f"], a["v"]),
    "empty": lambda xp, a: xp.empty((2, 0)),
    "expand_dims": lambda xp, a: xp.expand_dims(a["v"], (0, -1)),
    "extract": lambda xp, a: xp.extract(a["b"], a["f"], size=4, fill_value=0.5),
    "eye": lambda xp, a: xp.eye(3, 4, k=1),
    "fill_diagonal": lambda xp, a: xp.fill_diagonal(a["m"], 0.5, inplace=False),
    "flatnonzero": lambda xp, a: xp.flatnonzero(a["b"], size=4),
    "fromfunction": lambda xp, a: xp.fromfunction(lambda i, j: i + 2 * j, (2, 3)),
    "full": lambda xp, a: [xp.full((2,), 0.5), xp.full((2,), True), xp.full(2, 1, dtype=xp.int8)],
    "full_like": lambda xp, a: [xp.full_like(a["f"], 2), xp.full_like(a["i"], 0.5, dtype=xp.float32)],
    "geomspace": lambda xp, a: xp.geomspace(1.0, 8.0, 4),
    "hamming": lambda xp, a: xp.hamming(5),
    "hanning": lambda xp, a: xp.hanning(5),
    "histogram": lambda xp, a: [xp.histogram(a["f"], bins=3), xp.histogram(a["f"], bins=np.array([0.0, 0.5, 1.0])), xp.histogram(a["f"], 4, (0.0, 1.0))],
    "histogram2d": lambda xp, a: xp.histogram2d(a["v"], a["v"], bins=2),
    "histogram_bin_edges": lambda xp, a: xp.histogram_bin_edges(a["f"], bins=3),
    "histogramdd": lambda xp, a: xp.histogramdd(a["f"], bins=2),
    "hsplit": lambda xp, a: xp.hsplit(a["f"], 2),
    "identity": lambda xp, a: xp.identity(3),
    "indices": lambda xp, a: xp.indices((2, 3)),
    "insert": lambda xp, a: xp.insert(a["v"], 1, 0.5),
    "interp": lambda xp, a: [xp.interp(a["s"], a["v"], a["v"]), xp.interp(0.6, a["v"], a["v"], left=-1.0, period=None)],
    "intersect1d": lambda xp, a: xp.intersect1d(a["v"], a["v"], size=4),
    "ix_": lambda xp, a: xp.ix_(np.array([0, 1]), np.array([2])),
    "kaiser": lambda xp, a: xp.kaiser(5, 2.5),
    "ldexp": lambda xp, a: xp.ldexp(a["f"], a["i"]),
    "lexsort": lambda xp, a: xp.lexsort((a["v"], -a["v"])),
    "linspace": lambda xp, a: [xp.linspace(0, 1, 5), xp.linspace(0.0, 1.0, num=np.int64(4), endpoint=False), xp.linspace(a["v"], 2.0, 3, retstep=True)],
    "logspace": lambda xp, a: xp.logspace(0.0, 2.0, 3, base=2.0),
    "mask_indices": lambda xp, a: xp.mask_indices(3, jnp.triu, size=6),
    "matmul": lambda xp, a: xp.matmul(a["m"], a["f"]),
    "matvec": lambda xp, a: xp.matvec(a["m"], a["m"][0]),
    "meshgrid": lambda xp, a: xp.meshgrid(a["v"], a["m"][0], indexing="ij"),
    "moveaxis": lambda xp, a: xp.moveaxis(a["f"], 0, 1),
    "nanpercentile": lambda xp, a: xp.nanpercentile(a["f"], 25.0, axis=0),
    "nanquantile": lambda xp, a: xp.nanquantile(a["f"], 0.25),
    "nonzero": lambda xp, a: xp.nonzero(a["b"], size=4),
    "ones": lambda xp, a: xp.ones((2, 3), xp.float16),
    "outer": lambda xp, a: xp.outer(a["v"], a["v"]),
    "packbits": lambda xp, a: xp.packbits(a["b"], axis=1),
    "pad": lambda xp, a: [xp.pad(a["v"], 1), xp.pad(a["f"], ((0, 1), (2, 0)), constant_values=0.5), xp.pad(a["v"], 2, mode="reflect")],
    "partition": lambda xp, a: xp.partition(a["v"], 2),
    "percentile": lambda xp, a: xp.percentile(a["f"], np.array([25.0, 50.0]), axis=1),
    "permute_dims": lambda xp, a: xp.permute_dims(a["f"], (1, 0)),
    "piecewise": lambda xp, a: xp.piecewise(a["v"], [a["v"] < 0.5, a["v"] >= 0.5], [0.0, jnp.sin]),
    "place": lambda xp, a: xp.place(a["f"], ARRAYS["b"], a["v"], inplace=False),
    "poly": lambda xp, a: xp.poly(a["v"]),
    "polyadd": lambda xp, a: xp.polyadd(a["v"], a["v"][1:]),
    "polyder": lambda xp, a: xp.polyder(a["v"]),
    "polydiv": lambda xp, a: xp.polydiv(a["v"], a["m"][0]),
    "polyfit": lambda xp, a: xp.polyfit(np.arange(4.0), a["v"], 1),
    "polyint": lambda xp, a: xp.polyint(a["v"], k=0.5),
    "polymul": lambda xp, a: xp.polymul(a["v"], a["v"]),
    "polysub": lambda xp, a: xp.polysub(a["v"], a["m"][0]),
    "polyval": lambda xp, a: xp.polyval(a["v"], 0.5),
    "put": lambda xp, a: xp.put(a["v"], np.array([0, 2]), 0.5, inplace=False),
    "put_along_axis": lambda xp, a: xp.put_along_axis(a["f"], np.array([[0], [1], [2]]), 0.5, axis=1, inplace=False),
    "quantile": lambda xp, a: xp.quantile(a["f"], 0.25, method="nearest"),
    "ravel_multi_index": lambda xp, a: xp.ravel_multi_index((np.array([0, 1]), np.array([2, 1])), (2, 3), mode="clip"),
    "repeat": lambda xp, a: [xp.repeat(a["v"], 2), xp.repeat(a["v"], np.array([1, 0, 2, 1]))],
    "reshape": lambda xp, a: xp.reshape(a["f"], (2, -1)),
    "resize": lambda xp, a: xp.resize(a["v"], (2, 3)),
    "roll": lambda xp, a: xp.roll(a["f"], 1, axis=1),
    "rollaxis": lambda xp, a: xp.rollaxis(a["f"], 1),
    "searchsorted": lambda xp, a: xp.searchsorted(a["v"], 0.6),
    "select": lambda xp, a: xp.select([a["b"], ~a["b"]], [a["f"], 0.5]),
    "setdiff1d": lambda xp, a: xp.setdiff1d(a["v"], a["v"][:2], size=2),
    "setxor1d": lambda xp, a: xp.setxor1d(a["v"], a["v"][:2], size=2),
    "split": lambda xp, a: [xp.split(a["v"], 2), xp.split(a["v"], [1, 3]), xp.split(a["v"], np.array([1, 3]))],
    "swapaxes": lambda xp, a: xp.swapaxes(a["f"], 0, 1),
    "take": lambda xp, a: [xp.take(a["f"], np.array([0, 2]), axis=1), xp.take(a["v"], 9, mode="fill", fill_value=0.5)],
    "take_along_axis": lambda xp, a: xp.take_along_axis(a["f"], np.array([[0], [1], [2]]), axis=1),
    "tensordot": lambda xp, a: xp.tensordot(a["f"], a["f"], axes=([0, 1], [0, 1])),
    "tile": lambda xp, a: xp.tile(a["v"], (2, 1)),
    "tri": lambda xp, a: xp.tri(3, k=-1),
    "tril_indices": lambda xp, a: xp.tril_indices(3),
    "triu_indices": lambda xp, a: xp.triu_indices(3, 1),
    "union1d": lambda xp, a: xp.union1d(a["v"], a["v"], size=4),
    "unique": lambda xp, a: xp.unique(a["i"], size=12, return_counts=True),
    "unique_all": lambda xp, a: tuple(xp.unique_all(a["i"], size=12)),
    "unique_counts": lambda xp, a: tuple(xp.unique_counts(a["i"], size=12)),
    "unique_inverse": lambda xp, a: tuple(xp.unique_inverse(a["i"], size=12)),
    "unique_values": lambda xp, a: xp.unique_values(a["i"], size=12),
    "unpackbits": lambda xp, a: xp.unpackbits(a["u"], axis=1, bitorder="little"),
    "unravel_index": lambda xp, a: xp.unravel_index(np.array([1, 5]), (2, 3)),
    "vander": lambda xp, a: xp.vander(a["v"], 3),
    "vecmat": lambda xp, a: xp.vecmat(a["m"][0], a["m"]),
    "vsplit": lambda xp, a: xp.vsplit(a["f"], [1]),
    "where": lambda xp, a: [xp.where(a["b"], a["f"], 0.5), xp.where(a["b"], 1, 0), xp.where(a["b"], True, False)],
    "zeros": lambda xp, a: xp.zeros((2, 3), dtype=xp.bfloat16),
    # Functions that return types, tuples, numbers and strings.
    "broadcast_shapes": lambda xp, a: xp.broadcast_shapes((2, 1), (3,)),
    "can_cast": lambda xp, a: xp.can_cast("int8", xp.float32),
    "einsum_path": lambda xp, a: xp.einsum_path("ij,jk,k->i", a["m"], a["m"], a["m"][0])[0],
    "iscomplexobj": lambda xp, a: [xp.iscomplexobj(a["c"]), xp.iscomplexobj(a["f"]), xp.iscomplexobj(1j)],
    "isdtype": lambda xp, a: xp.isdtype(a["f"].dtype, "real floating"),
    "isrealobj": lambda xp, a: [xp.isrealobj(a["c"]), xp.isrealobj(x=a["f"])],
    "isscalar": lambda xp, a: [xp.isscalar(a["s"]), xp.isscalar(a["f"]), xp.isscalar(2)],
    "issubdtype": lambda xp, a: xp.issubdtype(a["f"].dtype, xp.floating),
    "iterable": lambda xp, a: [xp.iterable(a["v"]), xp.iterable(a["s"]), xp.iterable([1])],
    "ndim": lambda xp, a: xp.ndim(a["f"]),
    "promote_types": lambda xp, a: xp.promote_types("int8", "float16"),
    "result_type": lambda xp, a: [xp.result_type(a["i"], xp.bfloat16), xp.result_type(a["f"], 2.0), xp.result_type(a["u"] * 2, a["i"])],
    "shape": lambda xp, a: [xp.shape(a["f"]), xp.shape(a["s"])],
    "size": lambda xp, a: [xp.size(a["f"]), xp.size(a["f"], 1)],
    "fft.fftfreq": lambda xp, a: xp.fft.fftfreq(5, d=0.5),
    "fft.rfftfreq": lambda xp, a: xp.fft.rfftfreq(5, 0.5),
    **{f"fft.{name}": (lambda xp, a, name=name: getattr(xp.fft, name)(a["c"])) for name in "fft fft2 fftn ifft ifft2 ifftn fftshift ifftshift hfft irfft irfft2 irfftn".split()},
    **{f"fft.{name}": (lambda xp, a, name=name: getattr(xp.fft, name)(a["f"], norm="ortho")) for name in "rfft rfft2 rfftn ihfft".split()},
    **{f"linalg.{name}": (lambda xp, a, name=name: getattr(xp.linalg, name)(a["m"])) for name in "cholesky cond det diagonal eigvalsh inv matrix_rank matrix_transpose pinv slogdet svdvals trace".split()},
    "linalg.cond": lambda xp, a: [xp.linalg.cond(a["m"], p) for p in (None, 1, np.inf, "fro")],
    "linalg.cross": lambda xp, a: xp.linalg.cross(a["m"][0], a["m"][1]),
    # Vectors may differ in sign.
    "linalg.eigh": lambda xp, a: xp.linalg.eigh(a["m"])[0],
    "linalg.lstsq": lambda xp, a: xp.linalg.lstsq(a["m"], a["m"][0], rcond=1e-6)[0],
    "linalg.matmul": lambda xp, a: xp.linalg.matmul(a["m"], a["f"]),
    "linalg.matrix_norm": lambda xp, a: [xp.linalg.matrix_norm(a["m"], ord=order) for order in ("fro", 1, np.inf)],
    "linalg.matrix_power": lambda xp, a: xp.linalg.matrix_power(a["m"], 3),
    "linalg.multi_dot": lambda xp, a: xp.linalg.multi_dot([a["m"], a["m"], a["f"]]),
    "linalg.norm": lambda xp, a: [xp.linalg.norm(a["f"]), xp.linalg.norm(a["v"], ord=np.inf), xp.linalg.norm(a["f"], -np.inf, axis=0), xp.linalg.norm(a["v"], 2.5)],
    "linalg.outer": lambda xp, a: xp.linalg.outer(a["v"], a["v"]),
    "linalg.qr": lambda xp, a: xp.abs(xp.linalg.qr(a["m"], mode="r")),
    "linalg.solve": lambda xp, a: xp.linalg.solve(a["m"], a["f"]),
    "linalg.svd": lambda xp, a: xp.linalg.svd(a["m"], compute_uv=False),
    "linalg.tensordot": lambda xp, a: xp.linalg.tensordot(a["f"], a["f"], axes=2),
    "linalg.tensorinv": lambda xp, a: xp.linalg.tensorinv(a["m"].reshape(3, 3, 1), ind=1),
    "linalg.tensorsolve": lambda xp, a: xp.linalg.tensorsolve(a["m"], a["m"][0]),
    "linalg.vecdot": lambda xp, a: xp.linalg.vecdot(a["f"], a["f"]),
    "linalg.vector_norm": lambda xp, a: [xp.linalg.vector_norm(a["f"], axis=1), xp.linalg.vector_norm(a["v"], ord=np.inf), xp.linalg.vector_norm(a["v"], ord=3)],
}  # fmt: skip
#: Functions whose result shape depends on values of tensors.
REFUSED = {
    "trim_zeros": lambda xp, a: xp.trim_zeros(a["v"]),
    "roots": lambda xp, a: xp.roots(a["v"]),
    "nonzero": lambda xp, a: xp.nonzero(a["b"]),
    "unique": lambda xp, a: xp.unique(a["i"]),
    "where": lambda xp, a: xp.where(a["b"]),
    "repeat": lambda xp, a: xp.repeat(a["v"], a["i"][0]),
    "arange": lambda xp, a: xp.arange(a["s"]),
    "compress": lambda xp, a: xp.compress(a["b"][0], a["v"]),
}
#: Functions for which sessions have no algorithm: test_linalg.py.
MISSING = {"linalg.eig", "linalg.eigvals"}


def functions():
    for prefix, module in (("", jnp), ("fft.", jnp.fft), ("linalg.", jnp.linalg)):
        for name in dir(module):
            found = getattr(module, name)
            if not name.startswith("_") and callable(found) and not isinstance(found, (type, types.ModuleType)):
                yield prefix + name


def test_no_function_is_left_out():
    assert OF_TYPES <= set(TABLE)
    assert [name for name in functions() if name not in TABLE and name not in REFUSED and name not in OF_PROCESS | READERS | MISSING] == []


@pytest.fixture(scope="module")
def there(session):
    return session.put({name: jnp.asarray(array) for name, array in ARRAYS.items()})


HERE = {name: jnp.asarray(array) for name, array in ARRAYS.items()}


@pytest.fixture(scope="module")
def plain():
    """Returns the results of the plain functions, computed by one program for all of them."""
    names = [name for name in (OF_ONE + OF_TWO + OF_WHOLE).split() if hasattr(jnp, name)]
    return jax.jit(lambda arrays: {name: TABLE[name](jnp, arrays) for name in names})(HERE)


@pytest.mark.parametrize("name", TABLE)
def test_a_function_is_that_of_jax_numpy(there, plain, name):
    if not hasattr(jnp, name.split(".")[0]):
        pytest.skip(f"JAX {jax.__version__} has no {name}")
    expected = plain[name] if name in plain else TABLE[name](jnp, HERE)
    made = TABLE[name](there["f"].__array_namespace__(), there)
    if name in OF_TYPES:
        assert type(made) is type(expected) and made == expected
        return
    assert jax.tree.structure(made) == jax.tree.structure(expected)
    for got, wanted in zip(jax.tree.leaves(made), jax.tree.leaves(expected)):
        assert type(got) is sahasra.RemoteTensor
        assert (got.shape, got.dtype) == (wanted.shape, wanted.dtype)
        np.testing.assert_allclose(got.numpy(), wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", REFUSED)
def test_a_function_whose_result_depends_on_values_is_rejected(there, name):
    with pytest.raises((TypeError, IndexError, ValueError)):
        REFUSED[name](there["f"].__array_namespace__(), there)


def test_arrays_that_this_process_reads_are_uploaded(there, tmp_path):
    xp = there["f"].__array_namespace__()
    path = tmp_path / "values.npy"
    # The file changes between the two calls.
    for values in (ARRAYS["v"], 2 * ARRAYS["v"]):
        np.save(path, values)
        loaded = xp.load(path)
        assert type(loaded) is sahasra.RemoteTensor
        np.testing.assert_array_equal(loaded.numpy(), values)
    np.testing.assert_array_equal(xp.frombuffer(ARRAYS["v"].tobytes(), dtype=xp.float32).numpy(), ARRAYS["v"])


def test_a_number_whose_value_a_function_needs_is_part_of_the_program(session, there):
    xp = there["f"].__array_namespace__()
    for step in (0.5, 0.25, 0.5):
        np.testing.assert_allclose(xp.arange(0.0, 1.0, step).numpy(), np.arange(0.0, 1.0, step))
    xp.linalg.norm(there["v"], ord=np.inf)
    xp.clip(there["v"], 0.0, 0.5)
    session.synchronise()
    before = session.load()["programs"]
    xp.linalg.norm(there["v"], ord=np.inf)
    for bound in (0.25, 0.75):
        xp.clip(there["v"], 0.0, bound)
    session.synchronise()
    assert session.load()["programs"] == before
