import array
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sahasra.errors import IncompatibleProgramError, InvalidArgumentError
from sahasra.export import aval_of, host_array, is_key
from sahasra.jit import Traced


def exported(function, *arguments, cost=False, **options):
    traced = Traced(function, **options)
    leaves, tree = traced.flatten(arguments, {})
    return traced.export("cpu", tree, [aval_of(leaf) for leaf in leaves], cost=cost)


def test_unused_arguments_are_not_sent():
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
    words, immutable = host_array(key, aval)
    assert words.dtype == np.uint32
    assert words.shape == (2,)
    assert immutable
    made = exported(lambda key: jax.random.split(key)[0], key)
    assert is_key(made.outputs[0][1])


def test_types_are_those_that_jax_would_give():
    assert aval_of(np.ones(2)) == ((2,), np.dtype("float32"), False)
    assert aval_of([1, 2]) == ((2,), np.dtype("int32"), False)
    assert aval_of(True) == ((), np.dtype("bool"), False)
    assert aval_of(jax.ShapeDtypeStruct((2,), np.float64), described=True) == ((2,), np.dtype("float32"), False)
    converted, immutable = host_array(np.ones(2), aval_of(np.ones(2)))
    assert converted.dtype == np.float32
    assert immutable
    mine = np.ones(2, np.float32)
    assert host_array(mine, aval_of(mine)) == (pytest.approx(mine), False)


class Holder:
    """An array of another library, which shares its memory with NumPy."""

    def __init__(self):
        self.values = np.ones(3, np.float32)

    def __array__(self, dtype=None, copy=None):
        return self.values


@pytest.mark.parametrize("kind", ["memmap", "matrix", "memoryview", "array.array", "holder", "pandas", "view"])
def test_mutable_arrays_are_copied(kind, tmp_path):
    if kind == "pandas":
        leaf = pytest.importorskip("pandas").Series(np.ones(3, np.float32))
    else:
        leaf = {
            "memmap": lambda: np.memmap(tmp_path / "values", np.float32, "w+", shape=(3,)),
            "matrix": lambda: np.asmatrix(np.ones((1, 3), np.float32)),
            "memoryview": lambda: memoryview(np.ones(3, np.float32)),
            "array.array": lambda: array.array("f", [1, 1, 1]),
            "holder": Holder,
            "view": lambda: np.ones((2, 3), np.float32)[0],
        }[kind]()
    made, immutable = host_array(leaf, aval_of(leaf))
    assert made.dtype == np.float32 and made.size == 3
    assert not immutable


def test_new_arrays_of_numpy_are_sent_without_a_copy():
    for leaf in (1, 2.5, True, 1j, np.float32(1), [1.0, 2.0], (1, 2), jnp.ones(2), np.ones(2), array.array("d", [1.0])):
        assert host_array(leaf, aval_of(leaf))[1], type(leaf)


def test_calls_into_python_are_rejected_by_name_and_line():
    def lookup(x):
        return x

    def prints(x):
        jax.debug.print("{}", x)
        return x

    def calls(x):
        return jax.lax.cond(x.sum() > 0, lambda x: jax.pure_callback(lookup, x, x), jnp.sin, x)

    def logs(x):
        jax.debug.callback(print, x)
        return x

    for function, call in ((prints, "jax.debug.(print|callback)"), (calls, "jax.pure_callback of lookup"), (logs, "jax.debug.callback")):
        line = function.__code__.co_firstlineno + 1
        with pytest.raises(IncompatibleProgramError, match=f"{function.__name__} cannot be exported: {call} at {__file__}:{line} in "):
            exported(function, jnp.ones(2))


@pytest.mark.parametrize("word", ["export", "callback", "serializ"])
def test_an_error_of_the_function_is_raised_unchanged(word):
    def fails(x):
        raise ValueError(f"nothing to {word} here")

    with pytest.raises(ValueError, match=word) as caught:
        exported(fails, jnp.ones(2))
    assert not isinstance(caught.value, IncompatibleProgramError)


def test_the_checks_of_equinox_give_nan_and_warn():
    equinox = pytest.importorskip("equinox")

    def checked(x):
        return equinox.error_if(x, x.min() < 0, "negative")

    with pytest.warns(RuntimeWarning, match=rf"checked has checks of Equinox.*NaN.*: {__file__}:{checked.__code__.co_firstlineno + 1} in .*checked") as warned:
        made = exported(checked, jnp.ones(2))
    # The warning names the caller's file.
    assert [warning.filename for warning in warned if warning.category is RuntimeWarning] == [__file__]
    assert b"callback" not in made.code


SAME = """
def step(weights, x):
    return jnp.tanh(x @ weights) + 1
"""


@pytest.mark.skipif(jax.__version_info__ < (0, 7), reason="JAX 0.6 leaves the line in that the operation is written in")
def test_a_program_does_not_depend_on_source_lines():
    def step_from(lines, file):
        scope = {"jnp": jnp}
        exec(compile("\n" * lines + SAME, file, "exec"), scope)
        return scope["step"]

    arguments = (jnp.ones((4, 4)), jnp.ones((4, 4)))
    codes = [exported(step_from(1, "one.py"), *arguments).code]
    codes.append(exported(step_from(70, "other.py"), *arguments).code)
    assert codes[0] == codes[1]
    # A different computation is a different program.
    assert exported(step_from(1, "one.py"), jnp.ones((4, 4)), jnp.ones((3, 4))).code != codes[0]


def test_errors_of_tracing_name_the_users_argument_and_line():
    def step(weights, batch):
        return weights["w"] if batch["x"] > 0 else -weights["w"]

    with pytest.raises(jax.errors.TracerBoolConversionError) as caught:
        exported(step, {"w": jnp.ones(2)}, {"x": 1.0})
    said = str(caught.value)
    assert "batch['x']" in said and f"step at {__file__}" in said
    assert "sahasra/" not in said and "leaves" not in said


def test_a_tracer_is_rejected_with_the_arguments_name():
    with pytest.raises(InvalidArgumentError, match=r"jax.jit, grad or vmap.*session.jit\(jax.grad\(f\)\)"):
        jax.jit(aval_of)(jnp.ones(2))


def test_an_integer_out_of_range_is_rejected_as_in_jax():
    for number in (2**31, 2**40, -(2**31) - 1, 2**64):
        with pytest.raises(OverflowError):
            jnp.asarray(number)
        with pytest.raises(OverflowError, match=str(number)):
            host_array(number, aval_of(number))
    for number in (2**31 - 1, -(2**31)):
        assert host_array(number, aval_of(number))[0] == number
    # NumPy scalars and arrays wrap around in JAX, too.
    assert host_array(np.int64(2**40 + 5), aval_of(np.int64(2**40 + 5)))[0] == jnp.asarray(np.int64(2**40 + 5)) == 5


def test_scalars_of_numpy_are_of_their_type():
    for scalar in (np.float64(2), np.float32(2), np.int64(2), np.complex128(2), np.bool_(True)):
        here = jnp.ones(2, jnp.bfloat16) * scalar
        there = exported(lambda x, scalar: x * scalar, jnp.ones(2, jnp.bfloat16), scalar)
        assert there.outputs[0][1] == here.dtype, type(scalar)


class Model:
    """Methods decorated with jax.jit, as in models."""

    def __init__(self, scale):
        self.scale = scale

    def plain(self, x, n=2):
        return x * self.scale * n

    first = jax.jit(plain, static_argnums=0)
    both = jax.jit(plain, static_argnums=(0, 2))
    last = jax.jit(plain, static_argnums=(0, -1))
    named = jax.jit(plain, static_argnames=("self", "n"))
    gives = jax.jit(plain, static_argnums=0, donate_argnums=1)


def test_numbers_of_a_jit_of_ones_own_count_from_self():
    model, x = Model(3.0), np.ones(2, np.float32)
    for method, static in ((model.first, False), (model.both, True), (model.last, True), (model.named, True)):
        traced = Traced(method)
        leaves, tree = traced.flatten((x, 5), {})
        assert len(leaves) == (1 if static else 2), method
        exported(method, x, 5)
    # A number is an ordinary argument, and does not make another program.
    leaves, _ = Traced(model.first).flatten((2.0, 5.0), {})
    assert leaves == [2.0, 5.0]
    traced = Traced(model.gives)
    _, tree = traced.flatten((x, 5), {})
    assert traced.donated_leaves(tree) == [0]


def test_64_bit_arrays_are_rejected_while_jax_has_x64_disabled():
    kinds = {"float64": "float32", "int64": "int32", "uint64": "uint32", "complex128": "complex64"}
    try:
        jax.config.update("jax_enable_x64", True)
        wide = {kind: jnp.ones(2, kind) for kind in kinds}
        for kind, array in wide.items():
            assert exported(lambda q: q * 2, array).outputs[0][1] == kind
    finally:
        jax.config.update("jax_enable_x64", False)
    for kind, narrow in kinds.items():
        with pytest.raises(InvalidArgumentError, match=rf"argument p\['q'\] of .* is {kind} and jax_enable_x64 is off: .*convert .* to {narrow}"):
            exported(lambda p: p["q"] * 2, {"q": wide[kind]})
        # The types of NumPy's arrays are those that JAX gives them.
        assert exported(lambda q: q * 2, np.ones(2, kind)).outputs[0][1] == narrow


def scaled(x, n, *, mode="plain"):
    return x * n


@pytest.mark.parametrize(
    ("option", "given", "why"),
    [
        ("static_argnames", "m", "'m'.*not a parameter of scaled: it has x, n, mode"),
        ("static_argnames", ("n", "m"), "'m'"),
        ("donate_argnames", "y", "'y'"),
        ("static_argnums", 2, "contains 2, and scaled has 2 positional parameters: x, n"),
        ("static_argnums", (1, -3), "contains -3"),
        ("donate_argnums", 5, "contains 5"),
    ],
)
def test_unknown_parameter_names_are_rejected_as_in_jax(option, given, why):
    with pytest.raises(ValueError, match=option):
        jax.jit(scaled, **{option: given})
    with pytest.raises(InvalidArgumentError, match=f"{option}.*{why}"):
        Traced(scaled, **{option: given})


@pytest.mark.parametrize(
    ("option", "given"),
    [("donate_argnums", "x"), ("static_argnums", 1.0), ("static_argnums", (0, "x")), ("static_argnames", 1), ("donate_argnames", ("x", 0))],
)
def test_argument_numbers_of_a_wrong_type_are_rejected_with_the_options_name(option, given):
    with pytest.raises(TypeError):
        jax.jit(scaled, **{option: given})
    with pytest.raises(TypeError, match=f"^{option} must be"):
        Traced(scaled, **{option: given})


def test_a_static_argument_cannot_be_donated():
    for static, donate in (({"static_argnums": 1}, {"donate_argnums": 1}), ({"static_argnames": "n"}, {"donate_argnums": -1})):
        with pytest.raises(InvalidArgumentError, match="argument n of scaled is both static and donated"):
            Traced(scaled, **static, **donate)
    with pytest.raises(InvalidArgumentError, match="both static and donated"):
        Traced(jax.jit(scaled, static_argnums=1), donate_argnums=1)
    with pytest.raises(InvalidArgumentError, match="argument 3 of several is both"):

        def several(*arrays):
            return arrays

        Traced(several, static_argnums=3, donate_argnums=3)


def test_functions_with_variadic_arguments_accept_any_argument_number():
    def anything(*arrays, **options):
        return arrays

    Traced(anything, static_argnums=(4, -1), donate_argnums=2, static_argnames="mode", donate_argnames=["x"])
    Traced(lambda x, *others: x, static_argnums=-1, donate_argnums=0)
    Traced(scaled, static_argnums=np.int64(1), donate_argnums=[0], static_argnames={"mode"})
    with pytest.raises(InvalidArgumentError, match="positional-only.*static_argnums=0"):
        Traced(lambda x, /, y: x, static_argnames="x")


OLD = """
import sys, types
import jax
jax.__version_info__, jax.__version__ = (0, 5, 3), "0.5.3"
try:
    import sahasra.export
except ImportError as error:
    print(error)
"""


def test_an_old_jax_version_is_rejected_with_the_oldest_supported_one():
    said = subprocess.run([sys.executable, "-P", "-c", OLD], capture_output=True, text=True, timeout=120).stdout
    assert "JAX 0.6.2 or later" in said and "0.5.3" in said and "jax>=0.6.2" in said


def test_faults_of_the_function_are_its_own():
    with pytest.raises(TypeError, match="incompatible shapes|shapes must be equal|got incompatible"):
        exported(lambda x, y: x + y, jnp.ones(2), jnp.ones(3))
    with pytest.raises(TypeError, match="static_argnums"):
        aval_of(object())


def test_operations_are_counted():
    made = exported(lambda x: x @ x, jnp.ones((8, 8)), cost=True)
    assert made.flops is not None
    assert made.flops >= 2 * 8**3 * 0.9
