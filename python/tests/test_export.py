import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sahasra.errors import IncompatibleProgramError
from sahasra.export import aval_of, export, host_array, is_key


def exported(function, *arguments, donated=(), cost=False):
    leaves, tree = jax.tree_util.tree_flatten((arguments, {}))
    return export(function, "tested", tree, [aval_of(leaf) for leaf in leaves], donated, "cpu", cost=cost)


def test_what_a_program_does_not_use_is_not_sent_to_it():
    made = exported(lambda x, unused, y: x + y, jnp.ones(3), jnp.ones(4), jnp.ones(3))
    assert made.kept == (0, 2)
    assert made.outputs == (((3,), np.dtype("float32"), False),)
    assert made.code.startswith(b"ML")


def test_numbers_of_python_are_weak_as_they_are_in_jax():
    made = exported(lambda x, scale: x * scale, jnp.ones(2, jnp.bfloat16), 2.0)
    assert made.outputs[0][1] == jnp.bfloat16
    strong = exported(lambda x, scale: x * scale, jnp.ones(2, jnp.bfloat16), np.float32(2.0))
    assert strong.outputs[0][1] == np.float32


def test_keys_of_random_numbers_are_words():
    key = jax.random.key(3)
    aval = aval_of(key)
    assert is_key(aval[1])
    array, immutable = host_array(key, aval)
    assert array.dtype == np.uint32
    assert array.shape == (2,)
    assert immutable
    made = exported(lambda key: jax.random.split(key)[0], key)
    assert is_key(made.outputs[0][1])


def test_types_are_those_that_jax_would_give():
    assert aval_of(np.ones(2)) == ((2,), np.dtype("float32"), False)
    assert aval_of([1, 2]) == ((2,), np.dtype("int32"), False)
    assert aval_of(True) == ((), np.dtype("bool"), False)
    array, immutable = host_array(np.ones(2), aval_of(np.ones(2)))
    assert array.dtype == np.float32
    assert immutable
    mine = np.ones(2, np.float32)
    assert host_array(mine, aval_of(mine)) == (pytest.approx(mine), False)


def test_effects_are_refused_by_name():
    def prints(x):
        jax.debug.print("{}", x)
        return x

    def calls(x):
        return jax.pure_callback(lambda x: x, x, x)

    for function in (prints, calls):
        with pytest.raises(IncompatibleProgramError, match="tested"):
            exported(function, jnp.ones(2))


def test_faults_of_the_function_are_its_own():
    with pytest.raises(TypeError, match="incompatible shapes|shapes must be equal|got incompatible"):
        exported(lambda x, y: x + y, jnp.ones(2), jnp.ones(3))
    with pytest.raises(TypeError, match="static_argnums"):
        aval_of(object())


def test_operations_are_counted():
    made = exported(lambda x: x @ x, jnp.ones((8, 8)), cost=True)
    assert made.flops is not None
    assert made.flops >= 2 * 8**3 * 0.9
