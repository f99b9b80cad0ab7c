"""Sessions for the tests.

`session` is a real session executor behind a worker of a few lines (HTTP/1.1 Upgrade, then the connection is handed over), with the CPU
plugin that SAHASRA_PJRT_PLUGIN names. Where a binary or the plugin is missing the tests that need it say so and are skipped.
"""

import array
import contextlib
import fcntl
import os
import pathlib
import socket
import struct
import subprocess
import threading

import pytest

import sahasra
from sahasra import _native

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
BINARIES = pathlib.Path(os.environ.get("SAHASRA_BIN_DIR", ROOT / "target/debug"))
PLUGIN = os.environ.get("SAHASRA_PJRT_PLUGIN", "")
LIMIT = 256 << 20


class Worker:
    """One session's executor, and who hands connections over to it."""

    def __init__(self, engine, limit):
        board = os.memfd_create("board", os.MFD_ALLOW_SEALING)
        os.ftruncate(board, 4096)
        os.pwrite(board, struct.pack("<Q", limit), 0)
        fcntl.fcntl(board, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
        self.control, theirs = socket.socketpair()
        command = [BINARIES / "sahasra-worker", "executor", "session", f"--engine={engine}", f"--memory-bytes={limit}", f"--parent={os.getpid()}"]
        if engine == "xla":
            command.append(f"--plugin={PLUGIN}")
        self.process = subprocess.Popen(command, stdin=theirs, stdout=board, stderr=subprocess.PIPE, cwd="/")
        theirs.close()
        os.close(board)
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.listener.getsockname()[1]}"
        self.connections = []
        self.thread = threading.Thread(target=self.serve, daemon=True)
        self.thread.start()

    def serve(self):
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self.listener.accept()
                head = b""
                while b"\r\n\r\n" not in head and (byte := connection.recv(1)):
                    head += byte
                connection.sendall(b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: sahasra-session.v1\r\n\r\n")
                ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [connection.fileno()]))]
                self.control.sendmsg([struct.pack("<I", 0)], ancillary)
                self.connections.append(connection)

    def cut(self):
        """Breaks the connections that there are."""
        while self.connections:
            # The client may have closed it.
            with contextlib.suppress(OSError):
                self.connections.pop().shutdown(socket.SHUT_RDWR)

    def kill(self):
        """The worker is gone, as if by SIGKILL: nobody listens and nothing runs."""
        self.process.kill()
        # A thread that waits in accept() holds the socket open until it is shut down.
        self.listener.shutdown(socket.SHUT_RDWR)
        self.thread.join()
        self.listener.close()
        self.cut()

    def stop(self):
        self.process.kill()
        self.process.wait()
        with contextlib.suppress(OSError):
            self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        self.control.close()
        self.process.stderr.close()

    def connect(self):
        native = _native.Session.connect(None, "default", "tested", endpoint=self.url, token="token", connect=10.0)
        return sahasra.RemoteJaxSession(native, "tested", "default", "here/cpu-0")


def started(engine, limit=LIMIT):
    if not (BINARIES / "sahasra-worker").exists():
        pytest.skip(f"{BINARIES}/sahasra-worker is not built: cargo build --workspace --bins")
    if engine == "xla" and not PLUGIN:
        pytest.skip("SAHASRA_PJRT_PLUGIN names no plugin: crates/pjrt/plugin installs one where there is one for the machine")
    return Worker(engine, limit)


@pytest.fixture(scope="session")
def shared_worker():
    worker = started("xla")
    yield worker
    worker.stop()


@pytest.fixture(scope="module")
def session(shared_worker):
    session = shared_worker.connect()
    yield session
    session.close()


@pytest.fixture
def worker():
    """A worker of the test's own, for it to break."""
    worker = started("xla")
    yield worker
    worker.stop()


@pytest.fixture
def ptx_session():
    worker = started("ptx")
    session = worker.connect()
    yield session
    session.close()
    worker.stop()
