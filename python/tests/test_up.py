"""The package against a pool with real gateway, operator, workers and executors."""

import gc
import os
import pathlib
import signal
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import ROOT, eventually, on_this_machine

import sahasra

def names(client):
    return [made["metadata"]["name"] for made in client.sessions()]


def test_a_session_is_listed_until_it_is_closed(client):
    session = sahasra.RemoteJaxSession.create(client)
    assert session.name in names(client)
    session.close()
    assert session.name not in [made["metadata"]["name"] for made in client.sessions() if "deletionTimestamp" not in made["metadata"]]


def run(*command):
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


PROGRAM = """
import sys
import numpy as np
import sahasra

session = sahasra.RemoteJaxSession.create(sahasra.SahasraClient(sys.argv[1]), name="of-a-program")
x = session.put(np.ones(3))
print(x.numpy().sum())
"""


def test_a_program_that_ends_releases_its_session(pool, client):
    outcome = run(sys.executable, "-P", "-c", PROGRAM, pool.url)
    assert (outcome.returncode, outcome.stdout) == (0, "3.0\n"), outcome.stdout + outcome.stderr
    eventually(lambda: "of-a-program" not in names(client))


ENDLESS = """
import sys
import jax, jax.numpy as jnp
import sahasra

session = sahasra.RemoteJaxSession.create(sahasra.SahasraClient(sys.argv[1]), name=sys.argv[2])
endless = session.jit(lambda x: jax.lax.while_loop(lambda x: (x >= 0).all(), lambda x: jnp.sin(x) ** 2, x))
x = session.put(jnp.ones(3))
session.synchronise()
y = endless(x)
print("begun", flush=True)
if sys.argv[2] == "interrupted":
    with session:
        y.numpy()
elif sys.argv[2] == "closed":
    session.close()
    try:
        x.numpy()
    except sahasra.SessionClosedError:
        print("closed")
"""


@pytest.mark.parametrize("name", ["interrupted", "closed", "left"])
def test_a_step_that_does_not_end_ends_with_its_session(pool, client, name):
    with subprocess.Popen([sys.executable, "-P", "-c", ENDLESS, pool.url, name], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as program:
        try:
            begun = program.stdout.readline()
            if name == "interrupted":
                program.send_signal(signal.SIGINT)
            out, errors = program.communicate(timeout=120)
        finally:
            program.kill()
    assert (begun, out) == ("begun\n", "closed\n" if name == "closed" else ""), errors
    assert ("KeyboardInterrupt" in errors) == (name == "interrupted"), errors
    eventually(lambda: name not in names(client))


WAITING = """
import sys
import jax
import jax.numpy as jnp
import sahasra

session = sahasra.RemoteJaxSession.create(sahasra.SahasraClient(sys.argv[1]))
y = session.jit(lambda x: jax.lax.while_loop(lambda x: (x >= 0).all(), lambda x: jnp.sin(x) ** 2, x))(jnp.ones(3))
print("begun", flush=True)
try:
    y.numpy()
except sahasra.SessionClosedError:
    print("closed")
"""


@pytest.mark.parametrize("executor", ["running", "hung"])
def test_a_client_that_waits_learns_at_once_that_its_pool_ends(tmp_path, executor):
    with on_this_machine(tmp_path) as pool:
        program = subprocess.Popen(
            [sys.executable, "-P", "-c", WAITING, pool.url], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ}
        )
        begun = program.stdout.readline()
        if executor == "hung":
            # It cannot tell its client that it ends.
            for pid in pool.executors():
                os.kill(pid, signal.SIGSTOP)
    try:
        # The grace period, for which a client tries to resume a broken connection, is 60 s.
        out, errors = program.communicate(timeout=30)
    finally:
        program.kill()
    assert (begun, out) == ("begun\n", "closed\n"), errors


FORKING = """
import gc, os, signal, sys, warnings
import numpy as np
import sahasra

def attempt(use):
    try:
        use()
    except sahasra.ForkedProcessError:
        return
    sys.exit(f"{use} is had by a process that was forked")

# JAX warns about forks, but the forked processes do not use JAX.
warnings.simplefilter("ignore")
with sahasra.RemoteJaxSession.create(sahasra.SahasraClient(sys.argv[1])) as session:
    for number in range(30):
        # The session's connection transfers data during the fork.
        x, block = session.put(np.ones(3)), session.zeros(5).numpy()
        download = x._handle().download(x.nbytes)
        child = os.fork()
        if child == 0:
            signal.alarm(60)
            if number == 0:
                for use in (x.numpy, session.synchronise, download.wait, sahasra.SahasraClient(sys.argv[1]).sessions, lambda: session.zeros(1)):
                    attempt(use)
                assert block.sum() == 0
                session.close()
            del x, download, block
            gc.collect()
            sys.exit()
        assert os.waitpid(child, 0)[1] == 0, number
        assert x.numpy().sum() == 3
print("still here")
"""


def test_a_session_belongs_to_its_process_after_a_fork(pool):
    outcome = run(sys.executable, "-P", "-c", FORKING, pool.url)
    assert (outcome.returncode, outcome.stdout) == (0, "still here\n"), outcome.stdout + outcome.stderr


def test_a_session_without_references_is_released(client):
    session = sahasra.RemoteJaxSession.create(client, name="forgotten")
    x = session.put(np.ones(3))
    del session
    gc.collect()
    assert x.numpy().sum() == 3
    del x
    gc.collect()
    eventually(lambda: "forgotten" not in names(client))


def test_a_hundred_steps_transfer_no_values(pool, client):
    with sahasra.RemoteJaxSession.create(client, gpu_class=pool.gpu_class) as session:
        descend = lambda w, x: w - 0.1 * jax.grad(lambda w: ((x @ w) ** 2).mean())(w)
        here, there = jax.jit(descend), session.jit(descend, donate_argnums=0)
        w, x = jnp.ones((8, 1)), jnp.eye(8)
        remote = session.put(w)
        for _ in range(100):
            w = here(w, x)
            remote = there(remote, x)
        np.testing.assert_allclose(remote.numpy(), w, rtol=1e-5)
        del remote
        gc.collect()
        assert session.load()["tensors"] == 0
        assert "/" in session.device


def test_the_example_trains_and_releases_everything(pool):
    # Resources of an earlier test are reported for a moment after their release, and devices that seem to be in use are chosen last.
    eventually(pool.reports_idle)
    command = [sys.executable, ROOT / "examples/jax-mlp/train.py", "--url", pool.url, "--sessions", "2"]
    outcome = run(*command)
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr
    # Idle devices are chosen first, so each gets one session.
    one, other = pool.workers()
    assert f"sessions on {one}/" in outcome.stdout and f", {other}/" in outcome.stdout
    assert f"{one} has 0 tensors, {other} has 0 tensors" in outcome.stdout


def test_a_step_moves_no_arrays(client):
    # Without compression, because this test counts bytes, and a machine under load may look like a slow connection.
    with sahasra.RemoteJaxSession.create(client, compression="never") as session:
        step = session.jit(lambda x: x + 1)
        x = step(session.put(np.zeros(1 << 20, np.float32)))
        session.synchronise()
        before = session.traffic
        for _ in range(100):
            x = step(x)
        session.synchronise()
        after = session.traffic
        assert before.sent_bytes >= 4 << 20
        # A hundred frames of a few dozen bytes, and their acknowledgements.
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
def test_through_the_gateway_or_straight_to_the_worker(pool, client, direct):
    session = sahasra.RemoteJaxSession.create(client, engine="ptx", **pool.way(direct))
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


def test_a_session_that_cannot_be_placed_reports_the_reason(client):
    before = {made["metadata"]["name"] for made in client.sessions()}
    with pytest.raises(sahasra.CapacityError, match="room|VRAM|Mi|Gi|class"):
        sahasra.RemoteJaxSession.create(client, gpu_class="h100", wait_seconds=5.0)
    with pytest.raises(sahasra.CapacityError, match="100Gi"):
        sahasra.RemoteJaxSession.create(client, vram="100Gi", wait_seconds=5.0)
    assert {made["metadata"]["name"] for made in client.sessions() if "deletionTimestamp" not in made["metadata"]} <= before


def test_an_unknown_token_is_rejected(pool):
    with pytest.raises(sahasra.AuthenticationError):
        sahasra.SahasraClient(pool.url, token="wrong").sessions()


@pytest.mark.only_up("it looks at the files that `sahasra up` writes")
def test_the_token_file_is_found_and_only_its_owner_can_read_it(pool):
    port = pool.url.rsplit(":", 1)[1]
    folder = pathlib.Path(pool.kubeconfig).parent
    for name in (f"token-{port}", f"kubeconfig-{port}"):
        assert (folder / name).stat().st_mode & 0o777 == 0o600
    assert "SAHASRA_TOKEN" not in os.environ
    pool.client().sessions()
    token = (folder / f"token-{port}").read_text().strip()
    sahasra.SahasraClient(pool.url, token=token).sessions()


def test_workers_are_listed(client):
    workers = client.workers()
    assert len({worker["id"] for worker in workers}) == 2
    assert all(worker["status"] == "healthy" for worker in workers)


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


def test_a_burst_returns_a_data_frame(client):
    pandas = pytest.importorskip("pandas")
    parameters = pandas.DataFrame({"rate": np.linspace(2, 1, 20).astype(np.float32), "size": np.arange(1, 21, dtype=np.uint32)})
    frame = client.burst(ptx=SCORE, parameters=parameters, block=1, aggregate="argmin", vram="64Mi")
    assert len(frame) == 20
    output = [column for column in frame.columns if column.startswith("output")][0]
    frame = frame.sort_values("index")
    np.testing.assert_allclose(frame[output], parameters["rate"] * parameters["size"], rtol=1e-5)
    assert frame.attrs["burst"]["status"]["chunks"]["succeeded"] == 20
    assert frame.attrs["burst"]["status"]["aggregate"]["best"][0]["index"] == frame[output].argmin()


@pytest.mark.parametrize(("aggregate", "message"), [("median", "median"), ("topK", r"aggregate\.topK\.k")])
def test_an_aggregate_that_does_not_exist_or_lacks_a_field_is_rejected(client, aggregate, message):
    with pytest.raises(sahasra.SahasraError, match=message) as error:
        client.burst(ptx=SCORE, parameters={"rate": [1.0], "size": [1]}, block=1, vram="64Mi", aggregate=aggregate)
    print(error.value)


def test_columns_are_bound_by_the_names_of_the_parameters(client):
    pytest.importorskip("pandas")
    parameters = {"size": np.arange(1, 5, dtype=np.uint32), "rate": np.arange(2.5, 6.5, dtype=np.float32)}
    frame = client.burst(ptx=SCORE, parameters=parameters, block=1, vram="64Mi")
    assert list(frame.columns) == ["index", "size", "rate", "output0"]
    np.testing.assert_allclose(frame["output0"], parameters["rate"] * parameters["size"], rtol=1e-5)


def test_a_burst_of_more_rows_than_a_job_lists_is_several(client):
    rows = 4096 + 50
    parameters = {"rate": np.arange(rows, dtype=np.float32), "size": np.full(rows, 2, np.uint32)}
    with pytest.raises(sahasra.InvalidArgumentError, match="aggregate"):
        client.burst(ptx=SCORE, parameters=parameters, block=1, vram="64Mi", aggregate="sum")
    frame = client.burst(ptx=SCORE, parameters=parameters, block=1, vram="64Mi", name="many")
    assert [job["metadata"]["name"] for job in frame.attrs["bursts"]] == ["many-0", "many-1"]
    frame = frame.sort_values("index")
    assert frame["index"].tolist() == list(range(rows))
    np.testing.assert_array_equal(frame["output0"], 2 * np.arange(rows))
