"""The training step of examples/jax-mlp: Adam on a network of 2, 64, 64 and 3 units. Each step passes its state to the next."""

import importlib.util
import pathlib
import sys
import types

if importlib.util.find_spec("sahasra") is None:
    # Peers run the step without the package `sahasra`, which train.py imports and the step does not use.
    sys.modules["sahasra"] = types.ModuleType("sahasra")
    sys.modules["sahasra"].RemoteJaxSession = sys.modules["sahasra"].SahasraClient = None
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "examples" / "jax-mlp"))

import jax  # noqa: E402  (needs the path above)
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
from train import initial, spirals, train_step  # noqa: E402

# Number of points that a step learns from: as in the example, and few enough for a step of well below 100 µs.
POINTS = {"mlp_600": 600, "mlp_32": 32}
STEPS = 1000

__all__ = ["POINTS", "STEPS", "beginning", "train_step"]


def beginning(points):
    """Returns the state before the first step and the training data, as NumPy arrays, so that places cannot donate each other's arrays."""
    parameters = initial(0)
    zeros = jax.tree.map(jnp.zeros_like, parameters)
    state = (parameters, zeros, zeros, jnp.float32(0))
    return jax.tree.map(np.asarray, state), spirals(points, seed=0)
