"""Pools and sessions for the tests.

`pool` is `sahasra up`, started here, or the pool at SAHASRA_E2E_URL: `e2e/tests/python.rs` starts operator, gateway and workers
as processes with a real kube-apiserver, and runs the same tests on them. `session` is a session of that pool.

`worker` is a session executor behind a minimal worker (HTTP/1.1 Upgrade, then the connection is handed over), for tests that cut
its connections or kill it. If a binary or the PJRT plugin is missing, the tests that need it are skipped with the reason.
"""

import array
import contextlib
import fcntl
import os
import pathlib
import re
import shutil
import signal
import socket
import struct
import subprocess
import tempfile
import threading
import time

import pytest

import sahasra
from sahasra import _native

if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    # Shells start background jobs with SIGINT ignored, which the programs under test would inherit.
    signal.signal(signal.SIGINT, signal.default_int_handler)

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
BINARIES = pathlib.Path(os.environ.get("SAHASRA_E2E_BIN_DIR", ROOT / "target/debug"))
PLUGIN = os.environ.get("SAHASRA_PJRT_PLUGIN", "")
LIMIT = 256 << 20


class Worker:
    """The executor of one session, and a server that hands connections over to it."""

    def __init__(self, engine, limit):
        status_page = os.memfd_create("status_page", os.MFD_ALLOW_SEALING)
        os.ftruncate(status_page, 4096)
        os.pwrite(status_page, struct.pack("<Q", limit), 0)
        fcntl.fcntl(status_page, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
        self.control, theirs = socket.socketpair()
        command = [BINARIES / "sahasra-worker", "executor", "session", "--backend=cpu", f"--engine={engine}", f"--memory-bytes={limit}", f"--agent-pid={os.getpid()}"]
        if engine == "xla":
            command.append(f"--plugin={PLUGIN}")
        # A file instead of a pipe, because nothing reads it, and a full pipe would block the executor.
        self.errors = tempfile.TemporaryFile()
        self.process = subprocess.Popen(command, stdin=theirs, stdout=status_page, stderr=self.errors, cwd="/")
        theirs.close()
        os.close(status_page)
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.listener.getsockname()[1]}"
        self.connections = []
        self.thread = threading.Thread(target=self.serve, daemon=True)
        self.thread.start()

    def serve(self):
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                # The listener was closed.
                return
            # From now on, `cut` breaks this connection too.
            self.connections.append(connection)
            # A broken connection must not prevent serving the next one.
            with contextlib.suppress(OSError):
                self.hand_over(connection)

    def hand_over(self, connection):
        connection.settimeout(60)
        head = b""
        while b"\r\n\r\n" not in head:
            byte = connection.recv(1)
            if not byte:
                return
            head += byte
        connection.sendall(b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: sahasra-session.v1\r\n\r\n")
        connection.settimeout(None)
        ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [connection.fileno()]))]
        self.control.sendmsg([struct.pack("<I", 0)], ancillary)

    def cut(self):
        """Breaks all current connections."""
        while self.connections:
            # The client may already have closed the connection.
            with contextlib.suppress(OSError):
                self.connections.pop().shutdown(socket.SHUT_RDWR)

    def kill(self):
        """Ends the worker as SIGKILL would: afterwards nothing listens and nothing runs."""
        self.process.kill()
        # A thread that waits in accept() holds the socket open until it is shut down.
        self.listener.shutdown(socket.SHUT_RDWR)
        self.cut()
        self.thread.join(60)
        assert not self.thread.is_alive(), "a connection is still being handed over"
        self.listener.close()
        self.cut()

    def stop(self):
        self.process.kill()
        self.process.wait()
        with contextlib.suppress(OSError):
            self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        self.control.close()
        self.errors.close()

    def connect(self, compression="adaptive"):
        native = _native.Session.connect(None, "default", "tested", endpoint=self.url, token="token", connect=10.0, compression=compression)
        return sahasra.RemoteJaxSession(native, "tested", "default", "here/cpu-0")


def needed(*binaries, plugin=True):
    """Skips the test with the reason if a binary or the plugin that it needs is missing."""
    for binary in binaries:
        if not (BINARIES / binary).exists():
            pytest.skip(f"{BINARIES}/{binary} is not built: cargo build --workspace --bins")
    if plugin and not PLUGIN:
        pytest.skip("SAHASRA_PJRT_PLUGIN names no plugin: crates/pjrt/plugin installs one where there is one for the machine")


def started(engine, limit=LIMIT):
    needed("sahasra-worker", plugin=engine == "xla")
    return Worker(engine, limit)


def eventually(probe, within=120.0):
    """Polls until the probe returns a true value, and returns that value. Fails the test after `within` seconds."""
    end = time.monotonic() + within
    while not (found := probe()):
        if time.monotonic() > end:
            pytest.fail(f"that did not come about within {within:g} s: {probe}")
        time.sleep(0.05)
    return found


class Pool:
    """A control plane with workers. Clients find its token in the environment, or in the file that `sahasra up` writes."""

    def __init__(self, url, gpu_class, kubeconfig, agents):
        self.url = url
        self.gpu_class = gpu_class
        self.kubeconfig = kubeconfig
        #: Process ids of the agents, whose descendants are the executors.
        self.agents = agents

    def client(self):
        return sahasra.SahasraClient(self.url)

    def way(self, direct):
        """Returns the options of `create` for a session that is reached directly (with the authority of the worker's certificate, if it has one) or
        through the gateway.
        """
        if direct and (authority := os.environ.get("SAHASRA_E2E_CA_FILE")):
            return {"direct": True, "authority": pathlib.Path(authority).read_text(), "server_name": os.environ["SAHASRA_E2E_SERVER_NAME"]}
        return {"direct": direct}

    def workers(self):
        """Names of the workers, sorted."""
        return sorted(worker["id"] for worker in self.client().workers())

    def reports_idle(self):
        """Returns whether the status of every worker reports no leased memory, no tensors and no executions."""
        figures = ("leasedMiB", "tensorCount", "activeExecutions")
        paths = " ".join(f"{{.items[*].status.summary.{figure}}}" for figure in figures)
        return set(self.kubectl("get", "gpuworkers", "-o", f"jsonpath={paths}").split()) == {"0"}

    def executors(self):
        """Process ids of the executors that serve sessions now."""
        return {pid for agent in self.agents for pid in descendants(agent) if b"session" in command(pid)}

    def kubectl(self, *arguments):
        """Runs kubectl as an administrator and returns its output."""
        program = os.environ.get("SAHASRA_E2E_KUBECTL") or shutil.which("kubectl")
        if program is None:
            pytest.skip("there is no kubectl on PATH, and SAHASRA_E2E_KUBECTL names none: `make tools` builds one")
        environment = {**os.environ, "KUBECONFIG": self.kubeconfig}
        run = subprocess.run([program, *arguments], capture_output=True, text=True, env=environment, timeout=180)
        assert run.returncode == 0, run.stderr
        return run.stdout


def command(pid):
    with contextlib.suppress(OSError):
        return pathlib.Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


def descendants(pid):
    found = []
    for task in pathlib.Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            for child in task.read_text().split():
                found += [int(child), *descendants(int(child))]
    return found


@contextlib.contextmanager
def on_this_machine(state):
    """Starts `sahasra up` with two workers; clients find the token in the file that it writes."""
    needed("sahasra")
    variables = ("SAHASRA_TOKEN", "SAHASRA_TOKEN_FILE", "KUBECONFIG", "XDG_STATE_HOME")
    before = {name: os.environ.pop(name, None) for name in variables}
    os.environ["XDG_STATE_HOME"] = str(state)
    with open(state / "errors", "w+") as errors:
        process = subprocess.Popen(
            [BINARIES / "sahasra", "up", "--workers", "2", "--port", "0", "--class", "g5"], stdout=subprocess.PIPE, stderr=errors, text=True
        )
        # The output must be read until its end, so that the process does not block.
        said = []

        def read():
            for line in process.stdout:
                said.append(line)

        reader = threading.Thread(target=read, daemon=True)
        reader.start()

        def shown():
            return "".join(said) + (state / "errors").read_text()

        end = time.monotonic() + 120
        while not said and process.poll() is None and time.monotonic() < end:
            time.sleep(0.05)
        found = re.search(r"127\.0\.0\.1:(\d+)", "".join(said))
        if found is None:
            process.kill()
            pytest.fail(f"sahasra up does not come up: {shown()}")
        try:
            yield Pool(f"http://{found.group()}", "g5", str(state / f"sahasra/kubeconfig-{found.group(1)}"), [process.pid])
        finally:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(timeout=120)
            except subprocess.TimeoutExpired:
                process.kill()
                pytest.fail(f"sahasra up does not end: {shown()}")
            finally:
                # The output is complete once the process has ended.
                reader.join(timeout=60)
                for name, value in before.items():
                    os.environ.pop(name, None) if value is None else os.environ.update({name: value})
        # `sahasra up` fails if a slice is still granted.
        assert process.returncode == 0, shown()


@pytest.fixture(scope="session")
def pool(tmp_path_factory):
    if url := os.environ.get("SAHASRA_E2E_URL"):
        needed()
        agents = [int(pid) for pid in os.environ.get("SAHASRA_E2E_AGENTS", "").split()]
        yield Pool(url, os.environ["SAHASRA_E2E_CLASS"], os.environ["SAHASRA_E2E_KUBECONFIG"], agents)
        return
    with on_this_machine(tmp_path_factory.mktemp("state")) as pool:
        yield pool


def pytest_configure(config):
    config.addinivalue_line("markers", "only_up(why): runs on `sahasra up` alone, for this reason")


def pytest_collection_modifyitems(config, items):
    if "SAHASRA_E2E_URL" in os.environ:
        elsewhere = [item for item in items if item.get_closest_marker("only_up")]
        config.hook.pytest_deselected(items=elsewhere)
        items[:] = [item for item in items if item not in elsewhere]


@pytest.fixture
def client(pool):
    return pool.client()


@pytest.fixture(scope="module")
def session(pool):
    with sahasra.RemoteJaxSession.create(pool.client(), gpu_class=pool.gpu_class, vram="256Mi") as session:
        yield session


@pytest.fixture
def ptx_session(client):
    with sahasra.RemoteJaxSession.create(client, vram="256Mi", engine="ptx") as session:
        yield session


@pytest.fixture
def worker():
    """A worker that the test may break."""
    worker = started("xla")
    yield worker
    worker.stop()
