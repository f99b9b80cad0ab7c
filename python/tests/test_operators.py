"""Equality of Python's operators and indexing on remote tensors with those on JAX arrays, and execution in the session."""

import gc
import operator
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sahasra

pytestmark = pytest.mark.only_up("they are functions of session.jit, which runs on every pool")

X = np.linspace(-3, 4, 12, dtype=np.float32).reshape(3, 4)
WHOLE = np.arange(1, 13, dtype=np.int32).reshape(3, 4)
ARITHMETIC = [operator.add, operator.sub, operator.mul, operator.truediv, operator.floordiv, operator.mod, operator.pow]
BITS = [operator.and_, operator.or_, operator.xor, operator.lshift, operator.rshift]
COMPARISONS = [operator.lt, operator.le, operator.gt, operator.ge, operator.eq, operator.ne]


def same(remote, local):
    assert type(remote) is sahasra.RemoteTensor
    assert (remote.shape, remote.dtype, remote._aval[2]) == (local.shape, local.dtype, local.weak_type)
    np.testing.assert_allclose(remote.numpy(), local, rtol=1e-5)


@pytest.mark.parametrize("function", ARITHMETIC + COMPARISONS)
@pytest.mark.parametrize("other", [2, np.abs(X), jnp.asarray(X)[:1]], ids=lambda other: type(other).__name__)
def test_an_operator_is_that_of_jax_from_both_sides(session, function, other):
    here, there = jnp.abs(jnp.asarray(X)), session.put(np.abs(X))
    same(function(there, other), function(here, jnp.asarray(other) if isinstance(other, np.ndarray) else other))
    same(function(other, there), function(jnp.asarray(other) if isinstance(other, np.ndarray) else other, here))


@pytest.mark.parametrize("exponent", [0, 3, 64, 200, np.int32(2), -1, -3, True], ids=repr)
@pytest.mark.parametrize("array", [WHOLE, WHOLE.astype(np.float32), np.array([1, -1, 2], np.int32)], ids=lambda array: str(array.dtype))
def test_a_power_of_a_whole_number_is_that_of_jax(session, array, exponent):
    def outcome(base):
        try:
            return base**exponent
        except TypeError as error:
            return str(error)

    local, remote = outcome(jnp.asarray(array)), outcome(session.put(array))
    if isinstance(local, str):
        assert remote == local
    else:
        same(remote, local)


@pytest.mark.parametrize("array", [WHOLE, X])
def test_quotient_and_remainder_are_those_of_jax_from_both_sides(session, array):
    here, there = jnp.asarray(array), session.put(array)
    for remote, local in ((divmod(there, 5), divmod(here, 5)), (divmod(7, there), divmod(7, here))):
        assert len(remote) == 2
        for one, other in zip(remote, local):
            same(one, other)


@pytest.mark.parametrize("function", BITS)
def test_operators_on_bits(session, function):
    here, there = jnp.asarray(WHOLE), session.put(WHOLE)
    same(function(there, 2), function(here, 2))
    same(function(2, there), function(2, here))


def test_the_type_is_that_of_jax(session):
    half = session.put(jnp.ones(3, jnp.bfloat16))
    assert (half * 2.5).dtype == jnp.bfloat16
    assert (half * np.float32(2.5)).dtype == np.float32
    assert (session.put(1) + 1)._aval[2]
    assert (1j * half).dtype == np.complex64
    assert (np.bool_(True) * half).dtype == jnp.bfloat16


def test_matrix_products_and_unary_operators(session):
    here, there = jnp.asarray(X), session.put(X)
    same(there @ there.T, here @ here.T)
    same(X.T @ there, X.T @ here)
    for function in (operator.neg, operator.pos, operator.abs):
        same(function(there), function(here))
    same(~session.put(WHOLE), ~jnp.asarray(WHOLE))
    there += 1
    same(there, here + 1)


INDICES = [
    1, -1, (0, 3), (-3, -4), slice(1, None), slice(None, None, -2), (slice(None), 2), (..., 0), None, (slice(0, 2), None, -1), np.int64(2),
    [0, 2, 0], (slice(None), np.array([3, 1])), (np.array([[0], [2]]), np.array([1, 3])), (1, slice(None, 5)), (),
    X[:, 0] > -1, X > 0, (slice(None), [True, False, False, True]), ([0, 1], 2), jnp.array([2, 1]), jnp.int32(1), np.array(2),
    jnp.asarray(X > 0), (slice(None), jnp.array([True, False, False, True])), True, False, np.bool_(True), jnp.bool_(False), np.array(True), (True, 0), (0, ..., False),
    [], slice(jnp.int32(1), np.int64(3)), (slice(None, np.uint8(2)), -1), np.int8(-1),
]  # fmt: skip


def plain(part):
    """Converts a part of an index to a form that JAX accepts: lists become arrays, boolean scalars and bounds of slices become Python objects."""
    if isinstance(part, list):
        return np.asarray(part, None if part else int)
    if isinstance(part, np.bool_):
        return bool(part)
    if isinstance(part, slice):
        return slice(*(None if bound is None else int(bound) for bound in (part.start, part.stop, part.step)))
    return part


@pytest.mark.parametrize("index", INDICES, ids=str)
def test_an_index_is_that_of_jax(session, index):
    x, parts = session.put(X), tuple(map(plain, index if isinstance(index, tuple) else (index,)))
    same(x[index], jnp.asarray(X)[parts])
    same(x.at[index].get(), jnp.asarray(X).at[parts].get())
    same(x.at[index].set(7.0), jnp.asarray(X).at[parts].set(7.0))


def test_an_index_may_be_remote(session):
    x, i = session.put(X), session.put(np.array([2, 0]))
    np.testing.assert_array_equal(x[i].numpy(), X[[2, 0]])
    np.testing.assert_array_equal(x[i[1], 1:].numpy(), X[0, 1:])
    np.testing.assert_array_equal(x[i[1] : i[0], : session.put(3)].numpy(), X[0:2, :3])
    np.testing.assert_array_equal(x.at[: i[0]].set(0.0).numpy(), np.r_[np.zeros((2, 4)), X[2:]])
    with pytest.raises(TypeError, match="whole numbers"):
        x[: x[0, 0]]
    keys = session.jit(lambda: jax.random.split(jax.random.key(3), 4))()
    np.testing.assert_array_equal(keys[2].numpy(), jax.random.key_data(jax.random.split(jax.random.key(3), 4)[2]))


@pytest.mark.parametrize("index", [3, -4, (0, 4), (0, 0, 0), np.array([True, False]), X[:2] > 0, (slice(None), 9)], ids=str)
def test_an_index_out_of_range_is_rejected_locally(session, index):
    with pytest.raises(IndexError):
        session.put(X)[index]


def test_one_program_serves_every_index_and_nothing_is_downloaded(session):
    x = session.put(np.arange(100.0, dtype=np.float32))
    total = x[0] + x[1]
    session.synchronise()
    programs, before = session.load()["programs"], session.traffic
    for place in range(2, 100):
        total = total + x[place]
    session.synchronise()
    assert session.load()["programs"] == programs
    # Acknowledgements of the operations: a fifth of the bytes that the values would take if each were returned in a message.
    assert session.traffic.received_bytes - before.received_bytes < 10_000
    assert float(total) == 4950


def test_one_program_updates_every_index(session):
    x = session.put(np.zeros(100, np.float32))
    x = x.at[0].set(0.0).at[-1].add(0.0)
    session.synchronise()
    programs = session.load()["programs"]
    for place in range(1, 99):
        x = x.at[place].set(float(place))
        x = x.at[-np.int64(place)].add(0.0)
    session.synchronise()
    assert session.load()["programs"] == programs
    np.testing.assert_array_equal(x.numpy(), np.r_[np.arange(99.0), 0])


def test_tensors_of_an_index_are_freed_with_it(client):
    with sahasra.RemoteJaxSession.create(client, vram="64Mi") as session:
        gc.disable()
        try:
            x, i = session.put(X), session.put(np.array([2, 0]))
            x.at[i].set(1.0)
            x.at[i, 1:].add(x[i, 1:])
            x[i]
            held = weakref.ref(session)
            del x, i
            assert session.load()["tensors"] == 0
        finally:
            gc.enable()
    del session
    assert held() is None


def test_invalid_operands_are_rejected_as_in_python(session):
    x = session.put(X)
    for other in ("x", None, [1.0, 2.0]):
        with pytest.raises(TypeError):
            x + other
    for other in ("x", None):
        assert (x == other) is False and (x != other) is True
    for other in ([1.0, 2.0], (1.0, 2.0), {1.0}, {"x": 1.0}):
        for compare, sign in ((operator.eq, "=="), (operator.ne, "!=")):
            for operands in ((x, other), (other, x)):
                with pytest.raises(TypeError):
                    compare(*(jnp.asarray(X) if operand is x else operand for operand in operands))
                with pytest.raises(TypeError, match=rf"unsupported operand type\(s\) for {sign}: 'RemoteTensor' and '{type(other).__name__}'"):
                    compare(*operands)
    # A tensor of an integer is an index, with which Python would repeat the list.
    with pytest.raises(TypeError, match=r"for \*: 'list' and 'RemoteTensor'"):
        [1] * session.put(2)
    with pytest.raises(TypeError, match="unhashable"):
        hash(x)
    with pytest.raises((TypeError, ValueError), match="ncompatible shapes"):
        x + np.ones(5, np.float32)
    with pytest.raises(sahasra.InvalidArgumentError, match="deleted"):
        gone = session.put(X)
        gone.delete()
        gone + 1
    with pytest.raises(sahasra.InvalidArgumentError, match="argument of the function"):
        session.jit(lambda y: y + x)(X)
    for value, why in (("x", "str is not an array"), (np.array(["x"]), "ndarray of dtype <U1"), (np.datetime64(1, "s"), r"datetime64 of dtype datetime64\[s\]")):
        with pytest.raises(TypeError, match=f"^{why}.*leave it out of the tree$"):
            session.put(value)
        with pytest.raises(TypeError, match=rf"^leaf \['a'\]\[1\]: {why}"):
            session.put({"a": [1.0, value]})
        with pytest.raises(TypeError, match=f"argument x of tanh: {why}") as caught:
            session.jit(jnp.tanh)(value)
        # An array cannot be hashed.
        assert ("static_argnums" in str(caught.value)) == (not isinstance(value, np.ndarray))


def test_operators_need_the_engine_that_has_them(ptx_session):
    with pytest.raises(sahasra.InvalidArgumentError, match='add needs a session with engine="xla"'):
        ptx_session.zeros(3) + 1


def test_tensors_and_functions_of_another_session_are_rejected(session, client):
    with sahasra.RemoteJaxSession.create(client) as other:
        with pytest.raises(sahasra.InvalidArgumentError, match=f"of session {other.name}"):
            session.put(X) + other.put(X)
        double = other.jit(lambda x: 2 * x)
        for use in (session.execute_jitted, session.estimate_jitted):
            with pytest.raises(sahasra.InvalidArgumentError, match=other.name):
                use(double, (X,))


def test_a_session_that_operators_were_used_in_needs_no_collector_of_garbage(client):
    session = sahasra.RemoteJaxSession.create(client)
    gc.disable()
    try:
        x = session.put(X)
        assert (x + 1)[0, 0] == -2
        held = weakref.ref(session)
        del x, session
        assert held() is None
    finally:
        gc.enable()
