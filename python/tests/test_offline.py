"""What a session says without a pool: refusals before anything is sent, and reports of its end."""

import jax.numpy as jnp
import numpy as np
import pytest

import sahasra


class Native:
    """A connection on which nothing may be sent."""

    def welcome(self):
        return ("xla", "cpu", "1", "none", 1 << 30, "")


@pytest.fixture
def offline():
    return sahasra.RemoteJaxSession(Native(), "offline", "default", "here/cpu-0", False)


@pytest.mark.parametrize("inputs", [np.ones((2, 3), np.float32), jnp.ones(1), {"x": 1.0}, "xy", 1.0, None, (x for x in (1.0,))])
def test_sample_inputs_are_a_tuple_of_the_arguments(offline, inputs):
    for use in (offline.execute_jitted, offline.estimate_jitted):
        with pytest.raises(sahasra.InvalidArgumentError, match=r"sample_inputs must be a tuple of the arguments: write \(x,\)"):
            use(lambda x: x, inputs)
