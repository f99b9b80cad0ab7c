"""Equality of programs through session.jit with the same functions in local JAX, within the tolerance of the type."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

#: Relative and absolute tolerance of each type; other types must be equal. The guide states them, too.
TOLERANCE = {"bfloat16": 1e-2, "float16": 2e-3, "float32": 1e-5, "complex64": 1e-5}
X = np.linspace(-2, 2, 24, dtype=np.float32).reshape(4, 6)
SQUARE = np.linspace(-1, 1, 64, dtype=np.float32).reshape(8, 8)


def attention(x, w):
    q, k, v = (x @ w[name] for name in "qkv")
    scores = jax.nn.softmax(q @ k.T / np.sqrt(q.shape[-1]))
    x = x + scores @ v
    return x + jax.nn.gelu(x @ w["up"]) @ w["down"]


def weights():
    keys = jax.random.split(jax.random.key(1), 5)
    shapes = {"q": (6, 6), "k": (6, 6), "v": (6, 6), "up": (6, 12), "down": (12, 6)}
    return {name: jax.random.normal(key, shape) * 0.3 for key, (name, shape) in zip(keys, shapes.items())}


PROGRAMS = {
    "add": (lambda x: x + 1, X),
    "elementwise": (lambda x: jnp.tanh(x) * jnp.exp(-x) + jnp.sin(x), X),
    "matmul": (lambda x: jnp.tanh(x @ x), SQUARE),
    "dot_general": (lambda x: jnp.einsum("ij,kj->ik", x, x), X),
    "reduce": (lambda x: (x.sum(), x.mean(0), x.max(1), x.prod()), X),
    "argmax": (lambda x: (x.argmax(1), x.argmin()), X),
    "extremes_of_nan": (
        lambda x: (x.max(), x.min(0), jnp.ptp(x, 1), lax.cummax(x), jnp.linalg.norm(x, jnp.inf), lax.reduce_window(x, -jnp.inf, lax.max, (2, 2), (1, 1), "VALID")),
        np.where(X == X[1, 2], np.float32(np.nan), X),
    ),
    "softmax": (lambda x: jax.nn.softmax(x, axis=-1), X),
    # The sums have enough terms for their order to matter.
    "softmax_wide": (jax.nn.softmax, np.sin(np.arange(8192, dtype=np.float32)).reshape(2, 4, 32, 32)),
    "layer_norm": (lambda x: (x - x.mean(-1, keepdims=True)) * lax.rsqrt(x.var(-1, keepdims=True) + 1e-5), X),
    "transpose": (lambda x: x.T.reshape(3, 8), X),
    "gather": (lambda x, i: x[i], X, np.array([3, 0, 0])),
    "scatter": (lambda x: x.at[1].set(9.0).at[2, 1].add(1.0), X),
    "slice": (lambda x, i: lax.dynamic_slice(x, (i, 0), (2, 3)), X, 1),
    "concatenate": (lambda x: jnp.concatenate([x, x[:1]]), X),
    "where": (lambda x: jnp.where(x > 0, x, -x), X),
    "sort": (lambda x: (jnp.sort(x, axis=0), jnp.argsort(-x, axis=1)), X),
    "top_k": (lambda x: lax.top_k(x, 2), X),
    "cumsum": (lambda x: jnp.cumsum(x, axis=1), X),
    "fft": (lambda x: jnp.fft.fft(x), X),
    "rfft": (lambda x: jnp.fft.irfft(jnp.fft.rfft(x)), X),
    "convolution": (lambda x, k: lax.conv(x, k, (1, 1), "SAME"), SQUARE.reshape(1, 1, 8, 8), np.ones((1, 1, 3, 3), np.float32)),
    "pooling": (lambda x: lax.reduce_window(x, -jnp.inf, lax.max, (2, 2), (2, 2), "VALID"), SQUARE),
    "scan": (lambda x: lax.scan(lambda carry, row: (carry + row, carry.sum()), jnp.zeros(6), x), X),
    "while": (lambda x: lax.while_loop(lambda s: s[0] < 5, lambda s: (s[0] + 1, s[1] * 1.5), (0, x)), X),
    "fori": (lambda x: lax.fori_loop(0, 4, lambda i, y: y + i * x, x), X),
    "cond": (lambda p, x: lax.cond(p, jnp.sin, jnp.cos, x), True, X),
    "switch": (lambda i, x: lax.switch(i, [jnp.sin, jnp.cos, jnp.tan], x), 1, X),
    "grad": (jax.grad(lambda x: (jnp.tanh(x @ x) ** 2).sum()), SQUARE),
    "value_and_grad": (jax.value_and_grad(lambda w, x: ((x @ w) ** 2).mean()), np.ones((6, 2), np.float32), X),
    "hessian": (jax.hessian(lambda x: (x**3).sum()), np.arange(3, dtype=np.float32)),
    "vmap": (jax.vmap(lambda x, y: jnp.dot(x, y), in_axes=(0, None)), X, X[0]),
    "vmap_grad": (jax.vmap(jax.grad(lambda x: jnp.sin(x).sum())), X),
    "jvp": (lambda x: jax.jvp(jnp.sin, (x,), (x,)), X),
    "remat": (jax.grad(jax.checkpoint(lambda x: jnp.sin(jnp.sin(x)).sum())), X),
    "custom_vjp": (jax.grad(lambda x: jax.nn.relu(x).sum()), X),
    "nested_jit": (lambda x: jax.jit(jnp.sin)(x) + jax.jit(jnp.cos)(x), X),
    "random": (lambda key: jax.random.normal(key, (5,)), jax.random.key(7)),
    "random_raw": (lambda key: jax.random.uniform(key, (5,)), jax.random.PRNGKey(7)),
    "random_split": (lambda key: jax.random.bits(jax.random.split(key, 3)[2], (4,)), jax.random.key(7)),
    "permutation": (lambda key: jax.random.permutation(key, 9), jax.random.key(2)),
    "bfloat16": (lambda x: jnp.tanh(x @ x), SQUARE.astype(jnp.bfloat16)),
    "bfloat16_weak": (lambda x, scale: x * scale, SQUARE.astype(jnp.bfloat16), 0.5),
    "float16": (lambda x: x * 2 + 1, X.astype(np.float16)),
    "int8": (lambda x: x * x, np.arange(-8, 8, dtype=np.int8)),
    "uint32": (lambda x: x << 3 ^ x >> 1, np.arange(9, dtype=np.uint32)),
    "bool": (lambda x: (~x & (x ^ True), x.any(), x.all()), np.array([True, False, True])),
    "complex": (lambda x: (jnp.exp(1j * x), jnp.abs(x + 1j)), X),
    "complex_matmul": (lambda x: x @ x.conj().T, (X + 1j * X).astype(np.complex64)),
    "zero_size": (lambda x: (x + 1, x.sum(), jnp.concatenate([x, x])), np.zeros((0, 3), np.float32)),
    "zero_dimensions": (lambda x: (x * 2, x[None]), np.float32(3.0)),
    "constant": (lambda x: jnp.arange(5), X),
    "no_result": (lambda x: (), X),
    "pytree": (lambda t: {"sum": t["a"] + t["b"][0], "rest": (t["b"][1], None)}, {"a": X, "b": [X, np.int32(4)]}),
    "donated": (jax.jit(lambda x, y: (x * 2 + y, y.sum()), donate_argnums=0), X, X + 1),
    "static": (jax.jit(lambda x, n, mode: (x**n if mode == "power" else x).sum(0), static_argnums=(1, 2)), X, 3, "power"),
    "float8": (lambda x: (x.astype(jnp.float32) * 2).astype(jnp.float8_e4m3fn), SQUARE.astype(jnp.float8_e4m3fn)),
    "int16": (lambda x: x // 3 - x % 3, np.arange(-300, 300, 7, dtype=np.int16)),
    "transformer": (attention, X, weights()),
    "mlp_step": (
        lambda w, x: jax.tree_util.tree_map(
            lambda p, g: p - 0.1 * g, w, jax.grad(lambda w: (jnp.tanh(x @ w["a"]) @ w["b"]).var())(w)
        ),
        {"a": np.full((6, 5), 0.1, np.float32), "b": SQUARE[:5, :2]},
        X,
    ),
}


def jitted(function):
    """Applies ``jax.jit`` unless the function is jitted already: only its own ``jax.jit`` knows the static arguments."""
    return function if hasattr(function, "lower") else jax.jit(function)


def plain(leaf):
    if isinstance(leaf, jax.Array) and jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        leaf = jax.random.key_data(leaf)
    return np.asarray(leaf)


@pytest.mark.parametrize("name", PROGRAMS)
def test_remote_equals_local(session, name):
    function, *arguments = PROGRAMS[name]
    local = jitted(function)(*arguments)
    remote = session.jit(function)(*arguments)
    assert jax.tree_util.tree_structure(remote) == jax.tree_util.tree_structure(local)
    for here, there in zip(jax.tree_util.tree_leaves(local), jax.tree_util.tree_leaves(remote)):
        assert there.shape == here.shape
        assert there.dtype == here.dtype
        expected, got = plain(here), there.numpy()
        assert got.dtype == expected.dtype
        tolerance = TOLERANCE.get(expected.dtype.name)
        if tolerance is None:
            np.testing.assert_array_equal(got, expected)
        else:
            wide = np.complex128 if expected.dtype.kind == "c" else np.float64
            np.testing.assert_allclose(got.astype(wide), expected.astype(wide), rtol=tolerance, atol=tolerance)
    session.synchronise()
