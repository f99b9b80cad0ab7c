"""Caching of compiled programs for later sessions of the same namespace, and isolation from other namespaces."""

import jax.numpy as jnp
import pytest

import sahasra


def compiled_before(client, namespace, add):
    with sahasra.RemoteJaxSession.create(client, vram="256Mi", namespace=namespace) as session:
        estimate = session.estimate_jitted(lambda x: x * 2 + add, sample_inputs=(jnp.ones(7),))
        assert float(session.jit(lambda x: x * 2 + add)(jnp.ones(7)).numpy()[0]) == 2 + add
        return estimate.cached


@pytest.mark.only_up("its workers keep programs in one folder: elsewhere the second session may be another worker's")
def test_a_program_is_compiled_once_for_a_namespace(client):
    assert [compiled_before(client, "default", 11.0) for _ in range(2)] == [False, True]
    assert [compiled_before(client, "kube-public", 11.0) for _ in range(2)] == [False, True]
    assert not compiled_before(client, "default", 12.0)
