"""Remote tensors in place of JAX arrays: their methods and functions run in the session, and unsupported uses raise errors that name the remedy."""

import copy
import pickle
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sahasra

pytestmark = pytest.mark.only_up("they are functions of session.jit, which runs on every pool")

X = np.linspace(-3, 4, 12, dtype=np.float32).reshape(3, 4)


def same(remote, local):
    assert type(remote) is sahasra.RemoteTensor
    assert (remote.shape, remote.dtype) == (local.shape, local.dtype)
    np.testing.assert_allclose(remote.numpy(), local, rtol=1e-5)


METHODS = [
    lambda x: x.sum(), lambda x: x.mean(axis=0), lambda x: x.max(axis=(0, 1), keepdims=True), lambda x: x.reshape(4, 3), lambda x: x.reshape((2, -1)),
    lambda x: x.astype(jnp.bfloat16).astype("float32"), lambda x: x.T, lambda x: x.mT, lambda x: x.real, lambda x: x.transpose(1, 0), lambda x: x.ravel().sort(),
    lambda x: x.argmax(), lambda x: x.clip(-1.0, 2.5), lambda x: x.round(1), lambda x: round(x[0, 1], 2), lambda x: round(x[0, 1]), lambda x: x.std(ddof=1),
    lambda x: x.dot(x.T), lambda x: x.take(np.array([2, 0]), axis=0), lambda x: x.sum(axis=np.int64(1)), lambda x: x.cumsum(1), lambda x: x.all(),
    lambda x: x.at[0].set(1.5), lambda x: x.at[1:, 2].add(x[0, 0]), lambda x: x.at[np.array([0, 2])].multiply(2), lambda x: x.at[x[0, 0].astype(int), 1].get(),
    lambda x: x.at[X > 0].set(0.0), lambda x: x.at[7].set(1.0, mode="drop"), lambda x: x.at[..., None].get(), lambda x: x.copy(),
]  # fmt: skip


@pytest.mark.parametrize("function", METHODS, ids=range(len(METHODS)))
def test_a_method_is_that_of_jax(session, function):
    same(function(session.put(X)), function(jnp.asarray(X)))


def test_methods_download_nothing_and_are_one_program(session):
    x = session.put(np.arange(7, dtype=np.float32))
    x.sum()
    session.synchronise()
    programs, before = session.load()["programs"], session.traffic
    for _ in range(20):
        x.clip(0.5, 2.0).sum()
        x.clip(1.5, 3.0).sum()
    session.synchronise()
    assert session.load()["programs"] == programs + 1
    assert session.traffic.received_bytes - before.received_bytes < 2_000


def test_functions_of_the_array_namespace_run_in_the_session(session):
    x = session.put(X)
    xp = x.__array_namespace__()
    assert xp == session.put(X).__array_namespace__() and len({xp, x.__array_namespace__(api_version="2024.12")}) == 1
    same(xp.sin(x), jnp.sin(X))
    same(xp.add(x, 1), jnp.add(X, 1))
    same(xp.stack([x, 2 * x], axis=1), jnp.stack([X, 2 * X], axis=1))
    same(xp.linalg.norm(x, axis=1), jnp.linalg.norm(X, axis=1))
    same(xp.where(x > 0, x, 0.0), jnp.where(X > 0, X, 0.0))
    same(xp.arange(5), jnp.arange(5))
    same(xp.zeros((2, 3), dtype=xp.bfloat16), jnp.zeros((2, 3), jnp.bfloat16))
    one, other = xp.split(x, 2, axis=1)
    same(one + other, X[:, :2] + X[:, 2:])
    assert xp.result_type(x, xp.bfloat16) == jnp.float32
    assert (xp.pi, xp.float32) == (jnp.pi, jnp.float32)
    assert session.device in repr(xp)


def test_numbers_that_are_equal_and_of_different_types_are_different_programs(session):
    x = session.put(np.arange(3, dtype=np.int8))
    xp = x.__array_namespace__()
    # The values of each pair have equal hashes.
    for one, other in [(1, True), (True, 1), (1, np.int64(1)), (np.int64(1), 1), (1, np.int8(1)), (np.bool_(True), True)]:
        for value in (one, other):
            same(xp.where(x > 1, value, value), jnp.where(np.arange(3) > 1, value, value))
            same(xp.full((2,), value), jnp.full((2,), value))
            same(xp.add(x, value), jnp.add(np.arange(3, dtype=np.int8), value))


def test_static_arguments_are_distinguished_as_in_jax(session):
    choose = lambda x, values: jnp.where(x > 0, *values)
    here, there = jax.jit(choose, static_argnums=1), session.jit(choose, static_argnums=1)
    for values in ((1, 0), (True, False), (1.5, 0.5)):
        same(there(X, values), here(X, values))
    scale = lambda x, value: x * value
    here, there = jax.jit(scale, static_argnums=1), session.jit(scale, static_argnums=1)
    for value in (1, True, np.int64(1), 1.0):
        same(there(np.arange(3, dtype=np.int8), value), here(np.arange(3, dtype=np.int8), value))


def test_a_jax_function_that_downloads_a_value_warns(session):
    x = session.put(X)
    with pytest.warns(sahasra.RemoteTransferWarning, match=r"48 bytes.*session\.jit") as warned:
        np.testing.assert_array_equal(jnp.asarray(x), X)
    assert [warning.filename for warning in warned] == [__file__]
    with pytest.raises(sahasra.InvalidArgumentError, match="argument of the function"):
        jax.jit(lambda y: y + jnp.asarray(x))(X)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        # An operation with a remote operand runs in the session.
        same(jnp.asarray(X) + x, jnp.asarray(X) + X)
        np.testing.assert_array_equal(x.jax(), X)
        np.testing.assert_array_equal(np.asarray(x), X)


def test_arithmetic_of_trees_runs_in_the_session(session):
    tree = {"w": X, "b": [X[0]]}
    parameters, updates = session.put(tree), session.put(jax.tree.map(lambda x: 0.5 * x, tree))
    before = session.traffic.received_bytes
    applied = jax.tree.map(lambda p, u: (p + u).astype(p.dtype), parameters, updates)
    norm = sum((leaf**2).sum() for leaf in jax.tree.leaves(applied)) ** 0.5
    assert session.traffic.received_bytes - before < 2_000
    np.testing.assert_allclose(applied["b"][0].numpy(), 1.5 * X[0], rtol=1e-6)
    np.testing.assert_allclose(float(norm), np.sqrt(sum((2.25 * x**2).sum() for x in (X, X[0]))), rtol=1e-5)


def test_numbers_are_formatted(session):
    loss = session.put(np.float32(1.23456))
    assert (f"{loss:.3f}", f"{session.put(7):>4d}") == ("1.235", "   7")
    assert f"{loss}" == repr(loss)
    with pytest.raises(TypeError, match="format"):
        f"{session.put(X):.3f}"
    assert [10, 20, 30][session.put(np.int32(1))] == 20
    for wrong in (loss, session.put(np.arange(3))):
        with pytest.raises(TypeError, match="whole numbers"):
            [1, 2][wrong]


def test_an_unsupported_array_attribute_raises_an_error_with_the_remedy(session):
    x = session.put(X)
    with pytest.raises(TypeError, match=r"at\[index\]\.set"):
        x[0] = 1
    for attempt in (pickle.dumps, copy.deepcopy):
        with pytest.raises(TypeError, match=r"numpy\(\)"):
            attempt(x)
        with pytest.raises(TypeError, match=r"numpy\(\)"):
            attempt({"weights": [x]})
    for attempt in (pickle.dumps, copy.copy):
        with pytest.raises(TypeError, match="create another"):
            attempt(session)
    shallow = copy.copy(x)
    x.delete()
    np.testing.assert_array_equal(shallow.numpy(), X)
    with pytest.raises(AttributeError, match=r"no attribute 'nonzero'.*session\.jit.*jax\(\)"):
        shallow.nonzero()
    assert not hasattr(shallow, "__cuda_array_interface__")


def test_a_copy_outlives_a_donation(session):
    x = session.put(X)
    given = session.put(X)
    copied = copy.copy(given)
    session.jit(lambda array: array * 2, donate_argnums=0)(given)
    np.testing.assert_array_equal(copied.numpy(), X)
    kept = x.copy()
    session.jit(lambda x: 2 * x, donate_argnums=0)(x)
    np.testing.assert_array_equal(kept.numpy(), X)


def test_iterating_over_keys_of_random_numbers_gives_keys(session):
    keys = jax.random.split(jax.random.key(3), 4)
    there = session.jit(lambda key: jax.random.split(key, 4))(jax.random.key(3))
    assert len(there) == 4
    for key, here in zip(there, keys, strict=True):
        assert isinstance(key, jax.Array) and key.dtype == here.dtype and key.shape == ()
        assert jax.random.normal(key) == jax.random.normal(here)
    rows = list(session.put(keys.reshape(2, 2)))
    assert [row.shape for row in rows] == [(2,), (2,)]
    with pytest.raises(TypeError, match="iteration over a 0-d"):
        iter(session.put(jax.random.key(3)))


def test_is_deleted_works_as_in_jax(session):
    x, here = session.put(X), jnp.ones(2)
    assert x.is_deleted() is here.is_deleted() is False
    x.delete()
    here.delete()
    assert x.is_deleted() is here.is_deleted() is True
