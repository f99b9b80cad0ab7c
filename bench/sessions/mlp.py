"""The training step of examples/jax-mlp: Adam on a network of 2, 64, 64 and 3 units. Its state goes from step to step."""

import importlib.util
import pathlib
import sys
import types

if importlib.util.find_spec("sahasra") is None:
    # Peers run the step without the package, which train.py names and the step does not use.
    sys.modules["sahasra"] = types.ModuleType("sahasra")
    sys.modules["sahasra"].RemoteJaxSession = sys.modules["sahasra"].SahasraClient = None
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "examples" / "jax-mlp"))

import jax  # noqa: E402  (needs the path above)
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
from train import initial, spirals, train_step  # noqa: E402

# How many points a step learns from: the example's, and as few as make a step of well below 100 µs.
POINTS = {"mlp_600": 600, "mlp_32": 32}
STEPS = 1000

__all__ = ["POINTS", "STEPS", "beginning", "train_step"]


def beginning(points):
    """The state before the first step, and what each step learns from, as arrays of numpy's: no place can take them from another."""
    parameters = initial(0)
    zeros = jax.tree.map(jnp.zeros_like, parameters)
    state = (parameters, zeros, zeros, jnp.float32(0))
    return jax.tree.map(np.asarray, state), spirals(points, seed=0)
