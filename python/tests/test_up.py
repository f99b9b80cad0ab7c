"""The package against `sahasra up`: gateway, operator, workers, executors as they are."""

import gc
import os
import re
import signal
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import BINARIES, PLUGIN, ROOT

import sahasra

SNIPPET = """
import jax, jax.numpy as jnp
from sahasra import RemoteJaxSession, SahasraClient

client = SahasraClient("http://127.0.0.1:8000")
session = RemoteJaxSession.create(client, gpu_class="g5")

@jax.jit
def train_step(x):
    return jnp.tanh(x @ x)

x = jnp.ones((1024, 1024), dtype=jnp.float32)
estimate = session.estimate_jitted(train_step, sample_inputs=(x,))
execution = session.execute_jitted(train_step, sample_inputs=(x,))
print(estimate.feasible, execution.runtime_mode, len(execution.output_tensors))   # True jax_export_local 1
"""


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    if not (BINARIES / "sahasra").exists():
        pytest.skip(f"{BINARIES}/sahasra is not built: cargo build --workspace --bins")
    if not PLUGIN:
        pytest.skip("SAHASRA_PJRT_PLUGIN names no plugin: crates/pjrt/plugin installs one where there is one for the machine")
    state = tmp_path_factory.mktemp("state")
    before = {name: os.environ.pop(name, None) for name in ("SAHASRA_TOKEN", "SAHASRA_TOKEN_FILE", "KUBECONFIG", "XDG_STATE_HOME")}
    # The client finds the token where `sahasra up` writes it.
    os.environ["XDG_STATE_HOME"] = str(state)
    command = [BINARIES / "sahasra", "up", "--workers", "2", "--port", "0", "--class", "g5"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    first = process.stdout.readline()
    found = re.search(r"127\.0\.0\.1:\d+", first)
    if found is None:
        process.kill()
        pytest.fail(f"sahasra up does not come up: {first!r} {process.communicate()}")
    yield f"http://{found.group()}"
    process.send_signal(signal.SIGINT)
    out, errors = process.communicate(timeout=60)
    for name, value in before.items():
        os.environ.pop(name, None) if value is None else os.environ.update({name: value})
    assert process.returncode == 0, out + errors


@pytest.fixture
def client(url):
    return sahasra.SahasraClient(url)


def test_the_snippet_runs_as_it_stands(url, client, capsys):
    scope = {}
    exec(SNIPPET.replace("http://127.0.0.1:8000", url), scope)
    assert capsys.readouterr().out == "True jax_export_local 1\n"
    session = scope["session"]
    assert session.name in [made["metadata"]["name"] for made in client.sessions()]
    session.close()
    assert session.name not in [made["metadata"]["name"] for made in client.sessions() if "deletionTimestamp" not in made["metadata"]]


def test_a_hundred_steps_stay_there(client):
    with sahasra.RemoteJaxSession.create(client, gpu_class="g5") as session:
        step = session.jit(lambda w, x: w - 0.1 * jax.grad(lambda w: ((x @ w) ** 2).mean())(w), donate_argnums=0)
        w, x = jnp.ones((8, 1)), jnp.eye(8)
        remote = session.put(w)
        for _ in range(100):
            w = jax.jit(lambda w, x: w - 0.1 * jax.grad(lambda w: ((x @ w) ** 2).mean())(w))(w, x)
            remote = step(remote, x)
        np.testing.assert_allclose(remote.numpy(), w, rtol=1e-5)
        del remote
        gc.collect()
        assert session.load()["tensors"] == 0
        assert "/" in session.device


def test_the_example_trains_and_leaves_nothing(url):
    command = [sys.executable, ROOT / "examples/jax-mlp/train.py", "--url", url, "--workers", "2"]
    outcome = subprocess.run(command, capture_output=True, text=True)
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr
    # Idle devices first: one session on each.
    assert "sessions on local-0/" in outcome.stdout and ", local-1/" in outcome.stdout
    assert "local-0 has 0 tensors, local-1 has 0 tensors" in outcome.stdout


def test_a_step_moves_no_arrays(client):
    with sahasra.RemoteJaxSession.create(client) as session:
        step = session.jit(lambda x: x + 1)
        x = step(session.put(np.zeros(1 << 20, np.float32)))
        session.synchronise()
        before = session.traffic
        for _ in range(100):
            x = step(x)
        session.synchronise()
        after = session.traffic
        assert before.sent_bytes >= 4 << 20
        # A hundred frames of a few dozen bytes, and what says that they arrived.
        assert 1_000 < after.sent_bytes - before.sent_bytes < 20_000
        assert 0 < after.received_bytes - before.received_bytes < 5_000
        x.numpy()
        assert session.traffic.received_bytes - after.received_bytes >= 4 << 20


def test_two_sessions_have_their_own_tensors(client):
    with sahasra.RemoteJaxSession.create(client) as one, sahasra.RemoteJaxSession.create(client) as other:
        a, b = one.put(np.float32(1)), other.put(np.float32(2))
        assert (float(a), float(b)) == (1.0, 2.0)
        with pytest.raises(sahasra.InvalidArgumentError):
            one.jit(lambda x: x)(b)


@pytest.mark.parametrize("direct", [False, True])
def test_through_the_gateway_or_straight_to_the_worker(client, direct):
    session = sahasra.RemoteJaxSession.create(client, engine="ptx", direct=direct)
    status = next(made for made in client.sessions() if made["metadata"]["name"] == session.name)["status"]
    assert status["worker"] in session.device
    x = session.zeros((3,))
    assert x.numpy().tolist() == [0, 0, 0]
    session.close()


def test_a_session_that_is_deleted_ends_with_a_clear_error(client):
    session = sahasra.RemoteJaxSession.create(client)
    x = session.put(np.ones(3, np.float32))
    session.synchronise()
    client._gateway.delete_session(session.namespace, session.name)
    with pytest.raises(sahasra.SessionClosedError):
        while True:
            session.jit(lambda x: x + 1)(x).numpy()


def test_what_cannot_be_placed_says_why(client):
    before = {made["metadata"]["name"] for made in client.sessions()}
    with pytest.raises(sahasra.CapacityError, match="room|VRAM|MiB|GiB|class"):
        sahasra.RemoteJaxSession.create(client, gpu_class="h100", wait_seconds=1.0)
    assert {made["metadata"]["name"] for made in client.sessions() if "deletionTimestamp" not in made["metadata"]} <= before


def test_a_token_that_nobody_knows_is_refused(url):
    with pytest.raises(sahasra.AuthenticationError):
        sahasra.SahasraClient(url, token="wrong").sessions()


def test_workers_are_listed(client):
    workers = client.workers()
    assert [worker["id"] for worker in workers] == ["local-0", "local-1"]
    assert all(worker["status"] == "ready" for worker in workers)


SCORE = """
.version 7.0
.target sm_70
.address_size 64
.visible .entry score(.param .u64 o, .param .f32 rate, .param .u32 size)
{
    .reg .b64 %rd<2>; .reg .f32 %f<4>; .reg .b32 %r<2>;
    ld.param.u64 %rd0, [o]; ld.param.f32 %f0, [rate]; ld.param.u32 %r0, [size];
    cvt.rn.f32.u32 %f1, %r0;
    mul.f32 %f2, %f0, %f1;
    st.global.f32 [%rd0], %f2;
    ret;
}
"""


def test_a_burst_gives_a_frame(client):
    pandas = pytest.importorskip("pandas")
    parameters = pandas.DataFrame({"rate": np.linspace(2, 1, 20).astype(np.float32), "size": np.arange(1, 21, dtype=np.uint32)})
    frame = client.burst(ptx=SCORE, parameters=parameters, block=1, aggregate="argmin", vram="64Mi")
    assert len(frame) == 20
    output = [column for column in frame.columns if column.startswith("output")][0]
    frame = frame.sort_values("index")
    np.testing.assert_allclose(frame[output], parameters["rate"] * parameters["size"], rtol=1e-5)
    assert frame.attrs["burst"]["status"]["chunks"]["succeeded"] == 20
