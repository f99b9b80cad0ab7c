"""Bit-for-bit equality of the results of a session and those of the same plugin driven by JAX directly."""

import pathlib
import subprocess
import sys

import jax
import numpy as np
import pytest
from conftest import PLUGIN
from test_programs import PROGRAMS

#: Runs in a separate process, because JAX loads a plugin only once, before anything else.
DIRECT = """
import sys
from jax._src import compiler, xla_bridge
from jaxlib import xla_client

xla_bridge.register_plugin("direct", library_path=sys.argv[1])
import jax
import numpy as np

sys.path.insert(0, sys.argv[3])
from test_programs import PROGRAMS, jitted, plain

# With the options of a session: JAX sends those of its own XLA.
compiler.get_compile_options = lambda *_, **__: xla_client.CompileOptions.ParseFromString(bytes.fromhex(sys.argv[4]))
# JAX's own CPU client has the same name: it is not the one that computes here.
assert jax.devices()[0].client is xla_bridge.backends()["direct"], xla_bridge.backends()
results = {}
for name, (function, *arguments) in PROGRAMS.items():
    leaves = jax.tree_util.tree_leaves(jitted(function)(*arguments))
    for number, leaf in enumerate(leaves):
        array = plain(leaf)
        results[f"{name}/{number}"] = np.frombuffer(array.tobytes(), np.uint8)
        results[f"{name}/{number}/type"] = np.array(f"{array.dtype.name}{list(array.shape)}")
np.savez(sys.argv[2], **results)
"""

#: `xla.CompileOptionsProto` with one replica, one partition, no particular device, and `xla_cpu_enable_fast_min_max` off.
OPTIONS = "1a0f08ffffffffffffffffff0120012801" + "3a210a1b" + b"xla_cpu_enable_fast_min_max".hex() + "12021000"


@pytest.fixture(scope="module")
def direct(tmp_path_factory, pool):
    folder = tmp_path_factory.mktemp("direct")
    script = folder / "direct.py"
    script.write_text(DIRECT)
    environment = {"JAX_PLATFORMS": "direct,cpu", "PATH": "/usr/bin:/bin", "HOME": str(folder)}
    command = [sys.executable, "-P", script, PLUGIN, folder / "results.npz", pathlib.Path(__file__).parent, OPTIONS]
    run = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)
    assert run.returncode == 0, run.stderr
    with np.load(folder / "results.npz") as results:
        return dict(results)


@pytest.mark.parametrize("name", PROGRAMS)
def test_results_of_a_session_equal_those_of_its_plugin(session, direct, name):
    function, *arguments = PROGRAMS[name]
    leaves = jax.tree_util.tree_leaves(session.jit(function)(*arguments))
    assert sum(key.startswith(f"{name}/") for key in direct) == 2 * len(leaves)
    for number, leaf in enumerate(leaves):
        array = leaf.numpy()
        assert f"{array.dtype.name}{list(array.shape)}" == direct[f"{name}/{number}/type"].item()
        assert array.tobytes() == direct[f"{name}/{number}"].tobytes(), f"{array} is not {direct[f'{name}/{number}'].tobytes()!r}"
