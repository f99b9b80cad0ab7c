"""Reporting of failures, and calls that must not wait for answers that never arrive."""

import contextlib
import os
import pathlib
import signal
import socket
import subprocess
import sys
import threading
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import eventually
from test_session import SAXPY

import sahasra


def test_a_failed_kernel_fails_its_arguments(ptx_session):
    x, y = ptx_session.put(np.arange(1000, dtype=np.float32)), ptx_session.zeros(1000)
    kept = ptx_session.put(np.ones(3))
    saxpy = ptx_session.kernel(SAXPY, "saxpy")
    # 1024 threads access 1000 elements.
    saxpy(4, 256, y, x, 2.0, 1024)
    with pytest.raises(sahasra.ExecutionError, match="saxpy"):
        y.numpy()
    with pytest.raises(sahasra.ExecutionError, match="saxpy"):
        ptx_session.get({"y": y})
    assert kept.numpy().sum() == 3
    with pytest.raises(sahasra.ExecutionError, match="saxpy"):
        ptx_session.synchronise()


def test_a_rejected_launch_is_reported_once_and_keeps_its_arguments(ptx_session):
    numbers = np.arange(10, dtype=np.float32)
    x, y = ptx_session.put(numbers), ptx_session.zeros(10)
    saxpy = ptx_session.kernel(SAXPY, "saxpy")
    # 1025 threads are too many for a block.
    for look in (ptx_session.synchronise, y.numpy, x.numpy):
        saxpy(1, 1025, y, x, 2.0, 10)
        with pytest.raises(sahasra.InvalidArgumentError, match="saxpy"):
            look()
        np.testing.assert_array_equal(x.numpy(), numbers)
        assert not y.numpy().any()
    saxpy(1, 32, y, x, 2.0, 10)
    np.testing.assert_array_equal(y.numpy(), 2 * numbers)


def test_a_launch_with_a_failed_input_is_reported_too(ptx_session):
    x, y, z = ptx_session.put(np.arange(1000, dtype=np.float32)), ptx_session.zeros(1000), ptx_session.zeros(1000)
    saxpy = ptx_session.kernel(SAXPY, "saxpy")
    saxpy(4, 256, y, x, 2.0, 1024)
    with pytest.raises(sahasra.ExecutionError):
        ptx_session.synchronise()
    # The input of this launch is the result of a failed one.
    saxpy(4, 256, z, y, 2.0, 1000)
    with pytest.raises(sahasra.ExecutionError, match="saxpy"):
        z.numpy()
    assert not z.numpy().any()


@pytest.mark.parametrize("fails", ["launch", "compile"])
def test_a_block_in_which_a_kernel_failed_ends_with_its_failure(client, fails):
    text = SAXPY if fails == "launch" else SAXPY.replace("fma.rn.f32", "fma.rn.f99")
    with pytest.raises(sahasra.SahasraError, match="saxpy"):
        with sahasra.RemoteJaxSession.create(client, vram="64Mi", engine="ptx") as session:
            x, y = session.put(np.ones(10, np.float32)), session.zeros(10)
            # 1025 threads are too many for a block.
            session.kernel(text, "saxpy")(1, 1025 if fails == "launch" else 1, y, x, 2.0, 10)
    eventually(lambda: session.name not in [made["metadata"]["name"] for made in client.sessions()])


def test_a_failure_is_reported_only_once(client):
    with sahasra.RemoteJaxSession.create(client, vram="64Mi") as session:
        outer = session.jit(lambda x: jnp.outer(x, x))(jnp.ones(20_000))
        with pytest.raises(sahasra.OutOfDeviceMemoryError):
            outer.numpy()
    # `close` also reports a failure that was not reported before, after the device was released.
    session = sahasra.RemoteJaxSession.create(client, vram="64Mi")
    outer = session.jit(lambda x: jnp.outer(x, x))(jnp.ones(20_000))
    # Answered after the program was compiled and rejected, because `close` does not wait for compilations.
    session.load()
    with pytest.raises(sahasra.OutOfDeviceMemoryError):
        session.close()
    session.close()
    eventually(lambda: session.name not in [made["metadata"]["name"] for made in client.sessions()])
    # An exception raised in the block takes precedence.
    with pytest.raises(ZeroDivisionError):
        with sahasra.RemoteJaxSession.create(client, vram="64Mi") as session:
            outer = session.jit(lambda x: jnp.outer(x, x))(jnp.ones(20_000))
            1 / 0


def test_structures_are_parameters_of_kernels(ptx_session):
    text = """
.version 7.0
.target sm_70
.address_size 64
.visible .entry pick(.param .u64 o, .param .align 8 .b8 s[0x18])
{
    .reg .b64 %rd<2>; .reg .f64 %d;
    ld.param.u64 %rd0, [o]; ld.param.f64 %d, [s+16];
    st.global.f64 [%rd0], %d;
    ret;
}
"""
    out = ptx_session.zeros(1, np.float64)
    pick = ptx_session.kernel(text, "pick")
    assert pick.parameters == ["u64", "b8[24]"]
    pick(1, 1, out, np.array([1.0, 2.0, 3.5]).tobytes())
    assert out.numpy().tolist() == [3.5]
    with pytest.raises(sahasra.InvalidArgumentError, match="24 bytes"):
        pick(1, 1, out, bytes(16))


@pytest.mark.parametrize("kind", [">i4", ">f4", ">f8", ">i2", ">c8"])
def test_arrays_of_the_other_byte_order_are_the_same_numbers(session, ptx_session, kind):
    array = np.array([1, 2, 300], kind)
    with jax.enable_x64(True):
        for where in (session, ptx_session):
            tensor = where.put(array)
            assert tensor.dtype == np.dtype(kind[1:])
            np.testing.assert_array_equal(where.get(tensor), array)
            np.testing.assert_array_equal(tensor.numpy(), array)
    with pytest.raises(sahasra.InvalidArgumentError, match="filled"):
        session.put(np.ma.array([1, 2, 3], mask=[0, 1, 0]))
    with pytest.raises(sahasra.InvalidArgumentError, match="filled"):
        session.jit(jnp.sum)(np.ma.array([1, 2, 3], mask=[0, 1, 0]))


ENDLESS = lambda x: jax.lax.while_loop(lambda x: x < 2, lambda x: x * 0.5, x)  # noqa: E731


def test_an_endless_execution_is_ended_by_close(client):
    session = sahasra.RemoteJaxSession.create(client, vram="64Mi")
    running = session.jit(ENDLESS)(np.float32(1))
    session.close()
    eventually(lambda: session.name not in [made["metadata"]["name"] for made in client.sessions()])
    with pytest.raises(sahasra.SessionClosedError):
        running.numpy()


def test_a_block_whose_session_is_deleted_raises_an_error(client):
    with pytest.raises(sahasra.SessionClosedError):
        with sahasra.RemoteJaxSession.create(client, vram="64Mi") as session:
            running = session.jit(ENDLESS)(np.float32(1))
            client._gateway.delete_session(session.namespace, session.name)
    with pytest.raises(sahasra.SessionClosedError):
        running.numpy()


INTERRUPTED = """
import sys
import jax, numpy as np
import sahasra

client = sahasra.SahasraClient(sys.argv[1])
session = sahasra.RemoteJaxSession.create(client, name=sys.argv[2], vram="64Mi")
running = session.jit(lambda x: jax.lax.while_loop(lambda x: x < 2, lambda x: x * 0.5, x))(np.float32(1))
if sys.argv[3] == "leave":
    print("runs", flush=True)
    sys.exit()
try:
    with session:
        print("runs", flush=True)
        if sys.argv[3] == "look":
            running.numpy()
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


@pytest.mark.parametrize(("way", "signals"), [("look", 1), ("look", 2), ("block", 1), ("leave", 0)])
def test_an_interrupted_endless_step_ends_and_releases_the_device(pool, client, way, signals):
    name = f"interrupted-{way}-{signals}"
    process = subprocess.Popen([sys.executable, "-P", "-c", INTERRUPTED, pool.url, name, way], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout.readline() == "runs\n"
        for _ in range(signals):
            process.send_signal(signal.SIGINT)
            # A signal must be handled at any moment: before the wait, during the wait, and during close.
            time.sleep(0.3)
        said, _ = process.communicate(timeout=120)
        # The second signal may arrive before or after the program prints.
        assert said in {0: [""], 1: ["interrupted\n"], 2: ["", "interrupted\n"]}[signals]
        assert process.returncode == 0 or signals == 2
    finally:
        process.kill()
    eventually(lambda: name not in [made["metadata"]["name"] for made in client.sessions()])


def test_a_download_raises_an_error_if_the_session_is_deleted(client):
    session = sahasra.RemoteJaxSession.create(client, vram="1Gi", compression="never")
    zeros = session.zeros(400 << 20, np.uint8)
    session.synchronise()
    before = session.traffic.received_bytes
    told = []

    def look():
        try:
            while True:
                zeros.numpy()
        except sahasra.SahasraError as error:
            told.append(error)

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    eventually(lambda: session.traffic.received_bytes - before > 4 << 20)
    client._gateway.delete_session(session.namespace, session.name)
    thread.join(120)
    assert not thread.is_alive()
    assert isinstance(told[0], sahasra.SessionClosedError), told
    with pytest.raises(sahasra.SessionClosedError):
        session.synchronise()


def test_a_rejected_burst_is_reported_at_once(client):
    pytest.importorskip("pandas")
    text = ".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry k(.param .u64 o, .param .f32 a){ ret; }"
    told = []

    def refused():
        with pytest.raises(sahasra.ExecutionError, match="ResultsTooLarge|larger|512 KiB|Invalid"):
            client.burst(ptx=text, parameters={"a": np.ones(4096, np.float32)}, output=("f32", 64), timeout_seconds=3600, vram="64Mi")
        told.append(True)

    thread = threading.Thread(target=refused, daemon=True)
    thread.start()
    # The join is short, because a call that waited for its timeout would raise the same error, but an hour later.
    thread.join(60)
    assert told
    with pytest.raises(sahasra.WaitTimeoutError, match="after 3 s: .*100 ?Gi"):
        client.burst(ptx=text, parameters={"a": np.ones(4, np.float32)}, vram="100Gi", timeout_seconds=3)


class Hole:
    """A proxy in front of the gateway that, on request, stops forwarding data without closing connections."""

    def __init__(self, url):
        self.target = url.removeprefix("http://").rstrip("/").rsplit(":", 1)
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.listener.getsockname()[1]}"
        self.passes = threading.Event()
        self.passes.set()
        self.sockets = [self.listener]
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        # Serves until the listener is closed.
        with contextlib.suppress(OSError):
            while True:
                here, _ = self.listener.accept()
                there = socket.create_connection((self.target[0], int(self.target[1])))
                self.sockets += [here, there]
                for one, other in ((here, there), (there, here)):
                    threading.Thread(target=self.forward, args=(one, other), daemon=True).start()

    def forward(self, one, other):
        with contextlib.suppress(OSError):
            while data := one.recv(65536):
                self.passes.wait()
                other.sendall(data)
            other.shutdown(socket.SHUT_WR)

    def close(self):
        self.passes.set()
        for open_ in self.sockets:
            with contextlib.suppress(OSError):
                open_.shutdown(socket.SHUT_RDWR)
            open_.close()


def test_a_caller_on_a_stalled_connection_gets_an_error(pool, client):
    hole = Hole(pool.url)
    try:
        # The token is looked up by the gateway's port, which differs from that of the proxy.
        token = os.environ.get("SAHASRA_TOKEN") or (pathlib.Path(pool.kubeconfig).parent / f"token-{pool.url.rsplit(':', 1)[1]}").read_text().strip()
        session = sahasra.RemoteJaxSession.create(sahasra.SahasraClient(hole.url, token=token), vram="64Mi", engine="ptx", grace_seconds=1)
        x = session.zeros(3)
        assert x.numpy().sum() == 0
        hole.passes.clear()
        with pytest.raises(sahasra.ConnectionLostError):
            x.numpy()
        # The gateway does not answer, either.
        with pytest.raises(sahasra.ConnectionLostError):
            session.close()
    finally:
        hole.close()
    client._gateway.delete_session(session.namespace, session.name)


def test_a_burst_interrupted_during_creation_leaves_no_jobs(client):
    def interrupt(*_):
        raise KeyboardInterrupt

    ptx = ".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry none(.param .u64 o, .param .f32 a){ ret; }"
    parameters = {"a": np.zeros(3 * 4096, np.float32)}
    # Performs the imports of the call, because an interrupted import is not repeated.
    client.burst(ptx=ptx, parameters={"a": [0.0]})
    earlier = signal.signal(signal.SIGALRM, interrupt)
    interrupted = 0
    try:
        for attempt in range(30):
            try:
                signal.setitimer(signal.ITIMER_REAL, 0.01 + 0.003 * attempt)
                client.burst(ptx=ptx, parameters=parameters, name=f"cut-{attempt}")
            except KeyboardInterrupt:
                interrupted += 1
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
    finally:
        signal.signal(signal.SIGALRM, earlier)
    assert interrupted

    def is_gone(name):
        try:
            client._gateway.burst_over(client.namespace, name, 0.0)
        except sahasra.NotFoundError:
            return True
        except sahasra.SahasraError:
            return False
        return False

    made = [f"cut-{attempt}-{part}" for attempt in range(30) for part in range(3)]
    eventually(lambda: not [name for name in made if not is_gone(name)])


UNCLOSED = """
import sys
import jax.numpy as jnp
import sahasra

session = sahasra.RemoteJaxSession.create(sahasra.SahasraClient(sys.argv[1]), vram="256Mi")
wide = session.jit(lambda x: jnp.outer(x, x))(jnp.ones(20_000))
if sys.argv[2] == "raised":
    try:
        session.synchronise()
    except sahasra.OutOfDeviceMemoryError:
        pass
"""


@pytest.mark.parametrize("way", ["unraised", "raised"])
def test_an_unchecked_failure_is_reported_at_the_end_of_the_program(pool, way):
    ended = subprocess.run([sys.executable, "-P", "-c", UNCLOSED, pool.url, way], capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stderr
    assert ("OutOfDeviceMemoryError" in ended.stderr) == (way == "unraised"), ended.stderr
    assert "Traceback" not in ended.stderr
