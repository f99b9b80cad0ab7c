"""Behaviour of sessions against a real executor."""

import array
import gc

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sahasra


def counted(session):
    gc.collect()
    return session.load()["tensors"]


def test_an_estimate_counts_the_operations_of_a_product(session):
    x = jnp.ones((1024, 1024), dtype=jnp.float32)
    estimate = session.estimate_jitted(jax.jit(lambda x: x @ x), sample_inputs=(x,))
    assert estimate.argument_bytes == estimate.output_bytes == 4 << 20
    assert estimate.flops >= 2 * 1024**3


def test_downloaded_arrays_equal_the_uploaded_ones(session):
    tree = {"a": np.arange(6.0, dtype=np.float32).reshape(2, 3).T, "b": [jnp.ones((2, 0)), 3, np.bool_(True)], "c": jnp.array(1, jnp.bfloat16)}
    there = session.put(tree)
    assert all(isinstance(leaf, sahasra.RemoteTensor) for leaf in jax.tree_util.tree_leaves(there))
    back = session.get(there)
    assert jax.tree_util.tree_structure(back) == jax.tree_util.tree_structure(tree)
    for here, got in zip(jax.tree_util.tree_leaves(tree), jax.tree_util.tree_leaves(back)):
        np.testing.assert_array_equal(np.asarray(got, np.float32), np.asarray(here, np.float32))
    assert np.asarray(there["a"]).shape == (3, 2)
    assert there["a"].nbytes == 24
    assert float(there["b"][1]) == 3.0


def test_the_name_of_a_closed_session_can_be_used_at_once(client):
    for _ in range(5):
        sahasra.RemoteJaxSession.create(client, name="used-again", vram="16Mi").close()


@pytest.mark.parametrize("wrap", [np.asarray, memoryview, lambda values: values.view(np.memmap), lambda values: array.array("f", values.tobytes())])
def test_an_array_that_is_changed_later_was_sent_as_it_was(session, wrap):
    values = wrap(np.ones(1 << 20, np.float32))
    tensor = session.put(values)
    np.asarray(values)[:] = 7
    assert tensor.numpy().max() == 1.0


def test_a_tensor_of_many_parts_is_downloaded_completely(session):
    array = np.random.default_rng(1).integers(0, 255, 5_000_001, np.uint8)
    np.testing.assert_array_equal(session.put(array).numpy(), array)


def test_zeros_are_of_a_shape_of_whole_numbers(session):
    for shape in (3, np.int64(3), (3,), [np.int32(3)], np.array([3])):
        zeros = session.zeros(shape)
        assert zeros.shape == (3,) and zeros.numpy().tolist() == [0.0] * 3
    for wrong in (3.0, (1.5,), None, "3"):
        with pytest.raises(sahasra.InvalidArgumentError, match="shape="):
            session.zeros(wrong)


def test_tensors_stay_in_the_session_and_are_freed_with_the_last_reference(session):
    before = counted(session)
    step = session.jit(lambda x: x + 1)
    x = session.put(jnp.zeros(3))
    for _ in range(50):
        x = step(x)
    assert x.numpy().tolist() == [50.0] * 3
    assert counted(session) == before + 1
    x.delete()
    assert counted(session) == before
    assert x.is_deleted()
    with pytest.raises(sahasra.InvalidArgumentError, match=r"tensor of shape \(3,\) and dtype float32 was deleted"):
        x.numpy()


def test_a_call_during_the_comparison_of_a_static_argument_gets_a_program_of_its_own(session):
    class Factor:
        def __init__(self, value, meanwhile=lambda: None):
            self.value, self.meanwhile = value, meanwhile

        def __eq__(self, other):
            self.meanwhile()
            other.meanwhile()
            return self.value == other.value

        def __hash__(self):
            return hash(self.value)

    remote = session.jit(lambda x, factor: x * factor.value, static_argnums=1)
    # Another thread could call the function at this point; its call is then the previous call.
    interrupted = Factor(2.0, lambda: remote(np.float32(1), Factor(3.0)))
    assert float(remote(np.float32(1), Factor(2.0))) == 2
    assert float(remote(np.float32(1), interrupted)) == 2


def test_a_function_is_exported_once_for_shapes_types_and_static_values(session):
    traced = []

    def power(x, n, *, negative=False):
        traced.append((x.shape, n, negative))
        return -(x**n) if negative else x**n

    remote = session.jit(power, static_argnums=1, static_argnames="negative")
    x = np.arange(3, dtype=np.float32)
    for _ in range(3):
        assert remote(x, 2).numpy().tolist() == [0, 1, 4]
    assert remote(x, 3).numpy().tolist() == [0, 1, 8]
    assert remote(x, n=3).numpy().tolist() == [0, 1, 8]
    assert remote(x, 2, negative=True).numpy().tolist() == [0, -1, -4]
    assert remote(x[:2], 2).numpy().tolist() == [0, 1]
    assert len(set(traced)) == 4
    assert len(traced) == 5
    for arguments, keywords in (((x, [2]), {}), ((x,), {"n": [2]})):
        with pytest.raises(sahasra.InvalidArgumentError, match="argument n of power is static and cannot be hashed"):
            remote(*arguments, **keywords)


def test_jit_is_a_decorator_with_and_without_options(session):
    @session.jit
    def double(x):
        """Twice."""
        return x * 2

    @session.jit(static_argnames=("n",))
    def times(x, n):
        return x * n

    assert double.__doc__ == "Twice."
    assert float(double(2.0)) == 4.0
    assert float(times(2.0, n=3)) == 6.0


def test_donated_tensors_end(session):
    before = counted(session)
    step = session.jit(lambda state, x: (state + x, x.sum()), donate_argnums=0)
    state = session.put(jnp.zeros((64, 64)))
    x = session.put(jnp.ones((64, 64)))
    following, total = step(state, x)
    assert state.is_deleted()
    assert not x.is_deleted()
    assert following.numpy().max() == 1.0
    assert float(total) == 4096.0
    with pytest.raises(sahasra.InvalidArgumentError, match=r"argument state of .*lambda.*shape \(64, 64\) and dtype float32 was donated to .*lambda.*copy\(\)"):
        step(state, x)
    with pytest.raises(sahasra.InvalidArgumentError, match="was donated to .*lambda"):
        state.numpy()
    with pytest.raises(sahasra.InvalidArgumentError, match="argument state of .*lambda.* is donated, and the same tensor is argument x of"):
        step(x, x)
    assert not x.is_deleted()
    del following, total, x
    assert counted(session) == before


def test_donations_of_the_users_own_jit_apply(session):
    before = counted(session)
    own = jax.jit(lambda state, x: (state + x, x.sum()), donate_argnums=0)
    step = session.jit(own)
    state, x = session.put(jnp.zeros((64, 64))), session.put(jnp.ones((64, 64)))
    following, total = step(state, x)
    assert (state.is_deleted(), x.is_deleted()) == (True, False)
    assert following.numpy().max() == 1.0
    # The static and donated arguments of the inner jit apply by name, too, and in addition to those given here.
    named = session.jit(jax.jit(lambda x, n, *, state: state * n + x, static_argnames="n", donate_argnames="state"))
    again = named(x, 3, state=following)
    assert (following.is_deleted(), x.is_deleted()) == (True, False)
    assert again.numpy().max() == 4.0
    both = session.jit(jax.jit(lambda state, x: (state + x, state - x), donate_argnums=0), donate_argnums=1)(again, x)
    assert (again.is_deleted(), x.is_deleted()) == (True, True)
    assert [float(tensor.numpy().max()) for tensor in both] == [5.0, 3.0]
    del following, total, again, both
    assert counted(session) == before


def test_keys_of_random_numbers_stay_in_the_session(session):
    split = session.jit(lambda key: jax.random.split(key))
    key = session.put(jax.random.key(5))
    both = split(key)
    assert both.shape == (2,)
    assert jnp.array_equal(jax.random.key_data(both.jax()), jax.random.key_data(jax.random.split(jax.random.key(5))))
    draw = session.jit(lambda keys: jax.random.normal(keys[0], (3,)))
    np.testing.assert_allclose(draw(both).numpy(), jax.random.normal(jax.random.split(jax.random.key(5))[0], (3,)), rtol=1e-5)


def test_an_array_that_is_too_large_is_rejected_and_nothing_is_lost(session):
    kept = session.put(jnp.arange(4))
    outer = session.jit(lambda x: jnp.outer(x, x))
    result = outer(jnp.ones(20_000))
    with pytest.raises(sahasra.OutOfDeviceMemoryError, match="outer|lambda"):
        result.numpy()
    with pytest.raises(sahasra.OutOfDeviceMemoryError):
        session.synchronise()
    session.synchronise()
    assert kept.numpy().tolist() == [0, 1, 2, 3]


def test_an_upload_without_room_is_rejected_and_nothing_is_lost(session):
    kept = session.put(jnp.arange(4))
    before = session.load()
    large = session.put(np.zeros(257 << 20, np.uint8))
    with pytest.raises(sahasra.OutOfDeviceMemoryError, match="bytes"):
        large.numpy()
    with pytest.raises(sahasra.OutOfDeviceMemoryError):
        session.synchronise()
    zeros = session.zeros((1 << 28) + 1, np.uint8)
    with pytest.raises(sahasra.OutOfDeviceMemoryError):
        zeros.numpy()
    with pytest.raises(sahasra.OutOfDeviceMemoryError):
        session.synchronise()
    del large, zeros
    gc.collect()
    after = session.load()
    assert (after["tensors"], after["used_bytes"]) == (before["tensors"], before["used_bytes"])
    # An array that fits is accepted as before.
    assert session.put(np.full(128 << 20, 7, np.uint8)).numpy().min() == 7
    assert kept.numpy().tolist() == [0, 1, 2, 3]


def test_an_estimate_gives_the_reason(session):
    estimate = session.estimate_jitted(lambda x: jnp.outer(x, x), sample_inputs=(jnp.ones(20_000),))
    assert not estimate.feasible
    assert "1,600," in estimate.reason or "bytes" in estimate.reason
    assert estimate.limit_bytes == 256 << 20
    assert session.load()["active_executions"] == 0


def test_an_estimate_includes_existing_tensors(session):
    outer = lambda x, *, y: jnp.outer(x, y)
    column = jax.ShapeDtypeStruct((6144,), jnp.float32)
    # The result takes 144 MiB, and the session has 256 MiB.
    estimate = session.estimate_jitted(outer, (column,), {"y": column})
    assert (estimate.feasible, estimate.output_bytes) == (True, 144 << 20)
    there = session.zeros(160 << 18)
    estimate = session.estimate_jitted(outer, (column,), {"y": column})
    assert not estimate.feasible
    assert "are taken" in estimate.reason and f"{256 << 20:,}" in estimate.reason
    # An argument that is in the session already is counted once.
    estimate = session.estimate_jitted(lambda x: x[:9] + 1, (there,))
    assert estimate.feasible and estimate.total_bytes > 160 << 20
    with pytest.raises(TypeError, match="argument x of .*ShapeDtypeStruct"):
        session.jit(outer)(column, y=np.ones(3))
    del there
    gc.collect()


def test_an_estimated_function_is_not_compiled_again(session):
    step = lambda x: jnp.tanh(x @ x) + 23
    x = jnp.ones((16, 16))
    assert not session.estimate_jitted(step, (x,)).cached

    def elsewhere():
        return session.execute_jitted(step, (x,)), session.estimate_jitted(step, (x,))

    assert elsewhere()[1].cached


def test_an_execution_raises_only_its_own_failures(session):
    lost = session.zeros((1 << 28) + 1, np.uint8)
    execution = session.execute_jitted(lambda x, *, add: x + add, (jnp.ones(3),), {"add": 2.0})
    assert execution.output.numpy().tolist() == [3.0] * 3
    # `synchronise` still raises the earlier failure.
    with pytest.raises(sahasra.OutOfDeviceMemoryError):
        session.synchronise()
    session.synchronise()
    with pytest.raises(sahasra.OutOfDeviceMemoryError, match="wide"):
        wide = lambda x: jnp.outer(x, x)
        wide.__name__ = "wide"
        session.execute_jitted(wide, (jnp.ones(20_000),))
    session.synchronise()
    del lost


def test_gradients_with_respect_to_integers_have_no_values(session):
    def gradient(x, i):
        return jax.grad(lambda x, i: x * i, argnums=(0, 1), allow_int=True)(x, i)

    here, there = jax.jit(gradient)(2.0, 3), session.jit(gradient)(2.0, 3)
    assert float(there[0]) == here[0] == 3.0
    assert (type(there[1]), there[1].dtype, there[1].shape) == (np.ndarray, here[1].dtype, here[1].shape)
    # The arrays can be passed back to the session.
    assert float(session.jit(lambda gradient: gradient[0] + 1)(there)) == 4.0
    vectors = session.jit(lambda i: jax.vjp(lambda i: i * 2.0, i)[1](jnp.ones(3))[0])(np.arange(3))
    assert session.get({"a": vectors})["a"].shape == (3,)
    session.synchronise()


def test_a_whole_number_that_does_not_fit_names_its_argument(session):
    with pytest.raises(OverflowError, match=str(2**40)):
        session.put(2**40)
    with pytest.raises(OverflowError, match=r"argument batch\['x'\]\[1\] of step"):

        def step(weights, batch):
            return weights + batch["x"][1]

        session.jit(step)(1.0, {"x": [1, 2**31]})
    with pytest.raises(OverflowError):
        session.put(np.arange(3)) + 2**31


def test_a_traced_function_cannot_call_a_session(session):
    remote = session.jit(lambda x: (x * x).sum())
    for transformed in (jax.jit(remote), jax.grad(remote), jax.vmap(remote), lambda x: jax.lax.map(lambda x: remote(x=x), x)):
        with pytest.raises(sahasra.InvalidArgumentError, match=r"argument x of .*jax.jit, grad or vmap.*session.jit\(jax.grad"):
            transformed(jnp.ones(3))
    # A transformation inside the session's function is supported.
    assert session.jit(jax.grad(remote._function))(jnp.ones(3)).numpy().tolist() == [2.0] * 3


@pytest.mark.parametrize(("option", "values"), [("jax_enable_x64", (False, True)), ("jax_threefry_partitionable", (True, False)), ("jax_default_matmul_precision", ("default", "float32"))])
def test_a_function_follows_the_configuration(session, option, values):
    def draw(key):
        return jax.random.uniform(key, (7,)) @ jnp.arange(7.0)

    here, there = jax.jit(draw), session.jit(draw)
    before = getattr(jax.config, option)
    try:
        for value in (*values, *values):
            jax.config.update(option, value)
            local, remote = here(jax.random.key(5)), there(jax.random.key(5))
            assert remote.dtype == local.dtype
            np.testing.assert_allclose(remote.numpy(), local, rtol=1e-5)
    finally:
        jax.config.update(option, before)


def test_a_function_follows_the_promotion_of_types(session):
    add = lambda x, n: x + n
    here, there = jax.jit(add), session.jit(add)
    x, n = np.ones(2, np.float32), np.arange(2, dtype=np.int32)
    for promotion in ("standard", "strict", "standard", "strict"):
        with jax.numpy_dtype_promotion(promotion):
            if promotion == "standard":
                remote, local = there(x, n), here(x, n)
                assert remote.dtype == local.dtype == np.float32
                np.testing.assert_array_equal(remote.numpy(), local)
            else:
                for function in (here, there):
                    with pytest.raises(ValueError, match="promot"):
                        function(x, n)
                # Operators raise the error, too.
                with pytest.raises(ValueError, match="promot"):
                    session.put(x) + n


def test_keys_are_downloaded_as_keys(session):
    keys = jax.random.split(jax.random.key(5))
    back = session.get({"keys": session.put(keys), "n": session.put(3)})
    assert back["keys"].dtype == keys.dtype
    assert jnp.array_equal(jax.random.key_data(back["keys"]), jax.random.key_data(keys))
    assert session.put(back)["keys"].dtype == keys.dtype


@pytest.mark.parametrize(("option", "what"), [("jax_debug_nans", "nan"), ("jax_debug_infs", "inf")])
def test_nan_is_checked_if_jax_is_configured_to(session, option, what):
    risky = lambda x: {"log": jnp.log(x) * (1 if what == "inf" else jnp.sqrt(x - 1)), "n": jnp.arange(3)}
    remote = session.jit(risky)
    x = session.put(jnp.zeros(2))
    remote(x)
    jax.config.update(option, True)
    try:
        remote(session.put(jnp.ones(2)))
        with pytest.raises(FloatingPointError, match=rf"\({what}\) in the results of .*lambda"):
            remote(x)
    finally:
        jax.config.update(option, False)
    session.synchronise()


def test_methods_run_as_functions_do(session):
    class Model:
        def __init__(self, scale):
            self.scale = scale

        @session.jit(static_argnums=0)
        def there(self, x, n):
            return x * self.scale * n

        own = jax.jit(lambda self, x, n: x * self.scale * n, static_argnums=0)

    model, x = Model(3.0), np.ones(2, np.float32)
    assert model.there(x, 2.0).numpy().tolist() == [6.0, 6.0]
    assert session.jit(model.own)(x, 2.0).numpy().tolist() == [6.0, 6.0]


def test_the_device_of_a_tensor_is_shown(session):
    tensor = session.put(jnp.ones((2, 3), jnp.bfloat16))
    assert session.device.endswith("/cpu-0")
    assert repr(tensor) == f"RemoteTensor(shape=(2, 3), dtype=bfloat16, on {session.device})"
    assert session.device in tensor._repr_html_()
    assert tensor.device == session.device
    assert session.name in repr(session)


def test_notebooks_show_the_location_of_an_object_only(session):
    tensor = session.put(jnp.ones((2, 3)))
    html = tensor._repr_html_()
    assert "float32[2, 3]" in html and "24 bytes" in html and session.device in html and session.name in html
    tensor.delete()
    assert "deleted" in tensor._repr_html_() and session.device not in tensor._repr_html_()
    html = session._repr_html_()
    assert session.device in html and f"{256 << 20:,} bytes" in html
    name, session.name = session.name, "<script>"
    try:
        assert "<script>" not in session._repr_html_() + tensor._repr_html_()
    finally:
        session.name = name


def test_kernels_need_the_other_engine(session):
    with pytest.raises(sahasra.InvalidArgumentError, match='engine="ptx"'):
        session.kernel(".visible .entry k(){ ret; }", "k")


SAXPY = """
.version 7.0
.target sm_70
.address_size 64
.visible .entry saxpy(.param .u64 y, .param .u64 x, .param .f32 a, .param .u32 n)
{
    .reg .pred %p; .reg .b32 %r<6>; .reg .f32 %f<4>; .reg .b64 %rd<5>;
    mov.u32 %r0, %ctaid.x; mov.u32 %r1, %ntid.x; mov.u32 %r2, %tid.x;
    mad.lo.s32 %r3, %r0, %r1, %r2;
    ld.param.u32 %r4, [n];
    setp.ge.u32 %p, %r3, %r4;
    @%p bra DONE;
    ld.param.u64 %rd0, [y]; ld.param.u64 %rd1, [x]; ld.param.f32 %f0, [a];
    mul.wide.u32 %rd2, %r3, 4;
    add.s64 %rd3, %rd0, %rd2; add.s64 %rd4, %rd1, %rd2;
    ld.global.f32 %f1, [%rd4]; ld.global.f32 %f2, [%rd3];
    fma.rn.f32 %f3, %f0, %f1, %f2;
    st.global.f32 [%rd3], %f3;
DONE:
    ret;
}
"""


def test_kernels_run_on_the_tensors_of_a_session(ptx_session):
    x = ptx_session.put(np.arange(1000, dtype=np.float32))
    y = ptx_session.zeros(1000)
    saxpy = ptx_session.kernel(SAXPY, "saxpy")
    for _ in range(3):
        saxpy(4, 256, y, x, 2.0, 1000)
    np.testing.assert_array_equal(y.numpy(), 6 * np.arange(1000, dtype=np.float32))
    with pytest.raises(sahasra.InvalidArgumentError, match="4 arguments"):
        saxpy(4, 256, y, x, 2.0)
    for array, told in ((jnp.ones(3), "session.put it first"), (np.ones(3), "session.put it first"), ([1.0], r"type list of .*session.put\(numpy.asarray")):
        with pytest.raises(sahasra.InvalidArgumentError, match=rf"^parameter 2 of saxpy, x \(u64\): .*(no address there: .*{told}|{told})"):
            saxpy(4, 256, y, array, 2.0, 1000)
    with pytest.raises(sahasra.InvalidArgumentError, match=r"^parameter 3 of saxpy, a \(f32\): .* f32 takes one number, and this is a NumPy array"):
        saxpy(4, 256, y, x, np.ones(3), 1000)
    with pytest.raises(sahasra.InvalidArgumentError, match="engine"):
        ptx_session.jit(lambda x: x)


def test_a_64_bit_tensor_is_rejected_by_name_once_jax_has_x64_disabled(session):
    try:
        jax.config.update("jax_enable_x64", True)
        q = session.put(np.arange(3.0))
    finally:
        jax.config.update("jax_enable_x64", False)
    assert q.dtype == np.float64
    step = session.jit(lambda x, q: x + q.sum())
    with pytest.raises(sahasra.InvalidArgumentError, match="argument q of .*lambda.* is float64 and jax_enable_x64 is off"):
        step(1.0, q)
    with pytest.raises(sahasra.InvalidArgumentError, match="is float64 and jax_enable_x64 is off"):
        q + 1
    # The session is still usable, because the rejected operation was not sent.
    session.synchronise()
    assert float(step(1.0, session.put(q.numpy()))) == 4.0
    assert q.numpy().tolist() == [0.0, 1.0, 2.0]
