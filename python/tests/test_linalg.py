"""Linear algebra in sessions: operations of XLA replace the LAPACK and cuSOLVER calls of JAX."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sahasra

random = np.random.default_rng(0)
A = random.normal(size=(12, 12)).astype(np.float32)
S = A @ A.T + np.eye(12, dtype=np.float32)


def rebuilt_qr(a):
    q, r = jnp.linalg.qr(a)
    return q @ r, q.T @ q


def rebuilt_eigh(a):
    values, vectors = jnp.linalg.eigh(a)
    return values, (vectors * values) @ vectors.T


def rebuilt_svd(a):
    u, s, v = jnp.linalg.svd(a)
    return s, (u * s) @ v


# Signs and orders of vectors are not specified, so the products of the factors are compared.
PROGRAMS = {
    "cholesky": (jnp.linalg.cholesky, S),
    "solve": (lambda a: jnp.linalg.solve(a, a[:, :2]), A),
    "inv": (jnp.linalg.inv, S),
    "det": (jnp.linalg.slogdet, A),
    "triangular": (lambda a: jax.scipy.linalg.solve_triangular(a, a[:, 0], lower=True), S),
    "qr": (rebuilt_qr, A),
    "eigh": (rebuilt_eigh, S),
    "svd": (rebuilt_svd, A),
    "lstsq": (lambda a: jnp.linalg.lstsq(a, a[:, 0])[0], S),
    "gradient": (jax.grad(lambda a: jnp.linalg.slogdet(a)[1]), S),
    "batched": (jax.vmap(jnp.linalg.inv), np.stack([S, S + 1])),
    "complex": (jnp.linalg.inv, (S + 1j * np.eye(12)).astype(np.complex64)),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_linear_algebra_runs_in_the_session(session, name):
    function, argument = PROGRAMS[name]
    remote, local = (jax.tree_util.tree_leaves(made) for made in (session.jit(function)(argument), jax.jit(function)(argument)))
    for there, here in zip(remote, local):
        scale = float(np.max(np.abs(here))) or 1.0
        np.testing.assert_allclose(there.numpy() / scale, np.asarray(here) / scale, rtol=0, atol=1e-5)


def test_unsupported_linear_algebra_is_rejected_by_name(session):
    kept = session.put(A)
    with pytest.raises(sahasra.IncompatibleProgramError, match="eigenvalues.*geev") as caught:
        eigenvalues = lambda a: jnp.linalg.eigvals(a)  # noqa: E731
        eigenvalues.__name__ = "eigenvalues"
        session.jit(eigenvalues)(kept).numpy()
    assert "locally" in str(caught.value)
    with pytest.raises(sahasra.IncompatibleProgramError):
        session.synchronise()
    np.testing.assert_array_equal(kept.numpy(), A)
