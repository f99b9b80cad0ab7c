"""Training loops of libraries commonly used with JAX: the only change is from `jax.jit` to `session.jit`."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sahasra

pytestmark = pytest.mark.only_up("they are functions of session.jit, which runs on every pool")

#: Relative and absolute tolerance after the steps below, each of which inherits the error of the previous one. The guide states it, too.
TRAINED = 1e-4
STEPS = 10
X = np.random.default_rng(0).normal(size=(16, 4)).astype(np.float32)
Y = np.sin(X[:, :1]) + 0.5 * X[:, 1:2]


def trained(jit, optimiser, params, loss, *arrays):
    """Returns the parameters, the optimiser's state and the loss after `STEPS` gradient steps of Optax."""
    import optax

    state = jit(optimiser.init)(params)

    @jit
    def step(params, state, *arrays):
        value, gradients = jax.value_and_grad(loss)(params, *arrays)
        updates, state = optimiser.update(gradients, state, params)
        return optax.apply_updates(params, updates), state, value

    for _ in range(STEPS):
        params, state, value = step(params, state, *arrays)
    return params, state, value


def flax_linen(jit):
    import flax.linen as nn
    import optax
    from flax.training.train_state import TrainState

    class Net(nn.Module):
        @nn.compact
        def __call__(self, x, training):
            x = nn.BatchNorm(use_running_average=not training)(nn.Dense(8)(x))
            return nn.Dense(1)(nn.gelu(x))

    net = Net()
    variables = jit(net.init, static_argnames="training")(jax.random.key(0), X, training=True)
    state = TrainState.create(apply_fn=net.apply, params=variables["params"], tx=optax.sgd(0.05))

    @jit
    def step(state, statistics, x, y):
        def loss(params):
            out, updates = state.apply_fn({"params": params, "batch_stats": statistics}, x, training=True, mutable=["batch_stats"])
            return ((out - y) ** 2).mean(), updates["batch_stats"]

        (value, statistics), gradients = jax.value_and_grad(loss, has_aux=True)(state.params)
        return state.apply_gradients(grads=gradients), statistics, value

    statistics = variables["batch_stats"]
    for _ in range(STEPS):
        state, statistics, value = step(state, statistics, X, Y)
    return state.params, statistics, value


def flax_nnx(jit):
    import optax
    from flax import nnx

    class Net(nnx.Module):
        def __init__(self, rngs):
            self.first, self.last = nnx.Linear(4, 8, rngs=rngs), nnx.Linear(8, 1, rngs=rngs)

        def __call__(self, x):
            return self.last(jax.nn.relu(self.first(x)))

    graph, params = nnx.split(Net(nnx.Rngs(0)), nnx.Param)

    def loss(params, x, y):
        return ((nnx.merge(graph, params)(x) - y) ** 2).mean()

    params, _, value = trained(jit, optax.adam(1e-2), params, loss, X, Y)
    return params, value


def equinox(jit):
    import equinox as eqx
    import optax

    net = eqx.nn.MLP(4, 1, 8, 1, key=jax.random.key(0))
    params, rest = eqx.partition(net, eqx.is_inexact_array)

    def loss(params, x, y):
        return ((jax.vmap(eqx.combine(params, rest))(x) - y) ** 2).mean()

    params, _, value = trained(jit, optax.adamw(1e-2), params, loss, X, Y)
    return params, value


def haiku(jit):
    import haiku as hk
    import optax

    net = hk.transform(lambda x: hk.dropout(hk.next_rng_key(), 0.1, hk.nets.MLP([8, 1])(x)))
    params = jit(net.init)(jax.random.key(0), X)
    optimiser = optax.rmsprop(1e-3)
    state = jit(optimiser.init)(params)

    @jit
    def step(params, state, key, x, y):
        key, mine = jax.random.split(key)
        value, gradients = jax.value_and_grad(lambda params: ((net.apply(params, mine, x) - y) ** 2).mean())(params)
        updates, state = optimiser.update(gradients, state)
        return optax.apply_updates(params, updates), state, key, value

    key = jax.random.key(1)
    for _ in range(STEPS):
        params, state, key, value = step(params, state, key, X, Y)
    return params, value


def optax_clipping_and_accumulation(jit):
    import optax

    schedule = optax.warmup_cosine_decay_schedule(0.0, 0.1, 3, STEPS)
    optimiser = optax.MultiSteps(optax.chain(optax.clip_by_global_norm(0.5), optax.adam(schedule)), every_k_schedule=2)
    params = {"w": jnp.zeros((4, 1)), "b": jnp.zeros(1)}

    def loss(params, x, y):
        return ((x @ params["w"] + params["b"] - y) ** 2).mean()

    params, state, value = trained(jit, optimiser, params, loss, X, Y)
    return params, state.gradient_step, value


def diffrax(jit):
    import diffrax
    import optax

    def solved(rate, times):
        term = diffrax.ODETerm(lambda t, y, rate: -rate * y)
        saved = diffrax.SaveAt(ts=times)
        control = diffrax.PIDController(rtol=1e-4, atol=1e-6)
        return diffrax.diffeqsolve(term, diffrax.Tsit5(), 0.0, 2.0, 0.1, jnp.ones(2), args=rate, saveat=saved, stepsize_controller=control, max_steps=64).ys

    times = np.linspace(0, 2, 5, dtype=np.float32)
    wanted = np.exp(-np.outer(times, [0.5, 1.5])).astype(np.float32)

    def loss(rate, times, wanted):
        return ((solved(rate, times) - wanted) ** 2).mean()

    rate, _, value = trained(jit, optax.adam(0.1), jnp.ones(2), loss, times, wanted)
    return rate, value


def numpyro(jit):
    import numpyro
    import numpyro.distributions as dist
    from numpyro.infer import NUTS, SVI, Trace_ELBO, autoguide

    def model(x, y):
        w = numpyro.sample("w", dist.Normal(0, 1).expand([4]).to_event(1))
        scale = numpyro.sample("scale", dist.HalfNormal(1))
        numpyro.sample("y", dist.Normal(x @ w, scale), obs=y)

    svi = SVI(model, autoguide.AutoNormal(model), numpyro.optim.Adam(0.05), Trace_ELBO())
    state = svi.init(jax.random.key(0), X, Y[:, 0])
    update = jit(svi.update)
    for _ in range(STEPS):
        state, value = update(state, X, Y[:, 0])
    nuts = NUTS(model, max_tree_depth=3)
    chain = nuts.init(jax.random.key(1), 2, None, (X, Y[:, 0]), {})
    sample = jit(lambda chain, x, y: nuts.sample(chain, (x, y), {}))
    for _ in range(3):
        chain = sample(chain, X, Y[:, 0])
    return svi.optim.get_params(jax.tree.map(np.asarray, state.optim_state)), value, chain.z


def blackjax(jit):
    import blackjax

    def density(position):
        return -0.5 * (((X @ position - Y[:, 0]) ** 2).sum() + (position**2).sum())

    hmc = blackjax.hmc(density, step_size=0.1, inverse_mass_matrix=jnp.ones(4), num_integration_steps=5)
    state = jit(hmc.init)(jnp.zeros(4))
    step = jit(hmc.step)
    for number in range(STEPS):
        state, info = step(jax.random.key(number), state)
    return state.position, info.acceptance_rate


def test_functions_of_optax_are_for_session_jit(session):
    optax = pytest.importorskip("optax")
    params, updates = {"w": X}, {"w": 0.5 * X}
    there, more = session.put(params), session.put(updates)
    # Outside a session function, functions that convert their arguments download them, with a warning.
    with pytest.warns(sahasra.RemoteTransferWarning, match=r"session\.jit"):
        applied = optax.apply_updates(there, more)
    assert isinstance(applied["w"], jax.Array)
    np.testing.assert_allclose(applied["w"], 1.5 * X, rtol=1e-6)
    # Functions that accept only JAX arrays reject remote tensors.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        with pytest.raises((TypeError, ValueError), match="RemoteTensor"):
            optax.global_norm(there)
        with warnings.catch_warnings():
            warnings.simplefilter("error", sahasra.RemoteTransferWarning)
            inside = session.jit(optax.apply_updates)(there, more)
            norm = session.jit(optax.global_norm)(there)
    assert type(inside["w"]) is sahasra.RemoteTensor
    np.testing.assert_allclose(inside["w"].numpy(), 1.5 * X, rtol=1e-6)
    np.testing.assert_allclose(float(norm), np.sqrt((X**2).sum()), rtol=1e-5)


LOOPS = [flax_linen, flax_nnx, equinox, haiku, optax_clipping_and_accumulation, diffrax, numpyro, blackjax]


@pytest.mark.parametrize("loop", LOOPS, ids=lambda loop: loop.__name__)
def test_a_training_loop_is_that_of_jax(session, loop):
    library = {"flax_linen": "flax", "flax_nnx": "flax"}.get(loop.__name__, loop.__name__.split("_")[0])
    pytest.importorskip(library)
    with warnings.catch_warnings():
        # Diffrax contains checks that would raise errors.
        warnings.filterwarnings("ignore", "step has checks of Equinox", RuntimeWarning)
        there = session.get(loop(session.jit))
    here = loop(jax.jit)
    assert jax.tree_util.tree_structure(there) == jax.tree_util.tree_structure(here)
    for expected, got in zip(jax.tree_util.tree_leaves(here), jax.tree_util.tree_leaves(there)):
        np.testing.assert_allclose(got, expected, rtol=TRAINED, atol=TRAINED)
