"""State of a pool after killed clients, after clients that request too much or lack permissions, and after hundreds of sessions."""

import os
import pathlib
import subprocess
import sys
import time

import numpy as np
import pytest
from conftest import eventually, on_this_machine

import sahasra

#: Number of sessions; `make soak` runs more.
SESSIONS = int(os.environ.get("SAHASRA_E2E_SESSION_COUNT", "100"))

# The module measures the process of the pool, and therefore needs a pool of its own.
pytestmark = pytest.mark.only_up("it looks into the one process of gateway, operator and agents")


@pytest.fixture(scope="module")
def up(tmp_path_factory):
    with on_this_machine(tmp_path_factory.mktemp("state")) as pool:
        yield pool


def figures(up):
    """Returns resident KiB, file descriptors and threads of the single process that contains gateway, operator and agents."""
    folder = pathlib.Path(f"/proc/{up.agents[0]}")
    status = dict(line.split(":", 1) for line in (folder / "status").read_text().splitlines())
    return int(status["VmRSS"].split()[0]), len(list((folder / "fd").iterdir())), int(status["Threads"])


def tensors(up):
    return sum(worker["tensor_count"] for worker in up.client().workers())


def is_empty(up):
    workers = up.client().workers()
    held = sum(worker["tensor_count"] + worker["stored_tensor_bytes"] + worker["active_executions"] for worker in workers)
    return held == 0 and not up.executors() and not up.client().sessions()


def object_of(up, name):
    return next(made for made in up.client().sessions() if made["metadata"]["name"] == name)


CLIENT = """
import sys
import numpy as np
import sahasra
url, name = sys.argv[1:]
client = sahasra.SahasraClient(url)
session = sahasra.RemoteJaxSession.create(client, engine="ptx", vram="256Mi", name=name, grace_seconds=1, idle_timeout_seconds=5)
x = session.put(np.ones(1 << 20, np.float32))
session.synchronise()
print("there", flush=True)
# An upload that the kill interrupts.
while True:
    y = session.put(np.ones(16 << 20, np.float32))
"""


def test_tensors_of_a_killed_client_are_freed_after_the_grace_period_and_its_slice_after_the_idle_timeout(up):
    child = subprocess.Popen([sys.executable, "-P", "-c", CLIENT, up.url, "killed"], stdout=subprocess.PIPE, text=True)
    assert child.stdout.readline() == "there\n"
    eventually(lambda: tensors(up) >= 1)
    child.kill()
    child.communicate()
    since = time.monotonic()
    eventually(lambda: tensors(up) == 0)
    print(f"freed {time.monotonic() - since:.2f} s after the client was killed; its grace is 1 s")

    def failed():
        conditions = object_of(up, "killed")["status"]["conditions"]
        return next((one for one in conditions if one["type"] == "Failed" and one["status"] == "True"), None)

    assert eventually(failed)["reason"] == "IdleTimeout"
    eventually(lambda: not up.executors())
    up.client()._gateway.delete_session("default", "killed")
    eventually(lambda: is_empty(up))


def test_an_excessive_request_is_rejected_and_nothing_is_lost(up):
    with sahasra.RemoteJaxSession.create(up.client(), engine="ptx", vram="64Mi") as session:
        kept = session.put(np.arange(1024, dtype=np.uint32))
        large = session.put(np.zeros(32 << 20, np.float32))
        with pytest.raises(sahasra.OutOfDeviceMemoryError, match="bytes"):
            large.numpy()
        with pytest.raises(sahasra.OutOfDeviceMemoryError, match="upload"):
            session.synchronise()
        session.synchronise()
        assert (kept.numpy() == np.arange(1024)).all()
        del large
        assert session.load()["used_bytes"] == 4096
    eventually(lambda: is_empty(up))


def test_an_invalid_token_opens_no_session(up):
    with sahasra.RemoteJaxSession.create(up.client(), engine="ptx", vram="64Mi") as session:
        wrong = sahasra.SahasraClient(up.url, token="wrong")
        with pytest.raises(sahasra.AuthenticationError):
            wrong.sessions()
        for endpoint in (None, object_of(up, session.name)["status"]["endpoint"]):
            with pytest.raises(sahasra.AuthenticationError):
                sahasra._native.Session.connect(wrong._gateway, "default", session.name, endpoint=endpoint, token="wrong")
    eventually(lambda: is_empty(up))


def test_hundreds_of_sessions_leave_no_tensor_no_process_and_no_memory(up):
    client = up.client()
    rows = []

    def turn():
        with sahasra.RemoteJaxSession.create(client, engine="ptx", vram="64Mi") as session:
            x = session.put(np.full(1000, 7, np.float32))
            assert x.numpy()[999] == 7

    since = time.monotonic()
    # Resources that the process allocates once are allocated in the first fifth.
    for number in range(SESSIONS):
        turn()
        if (number + 1) % (SESSIONS // 5) == 0:
            eventually(lambda: is_empty(up))
            rows.append(figures(up))
    each = (time.monotonic() - since) / SESSIONS
    print(f"{SESSIONS} sessions, {1000 * each:.0f} ms each; KiB, descriptors, threads after each fifth: {rows}")
    (first, descriptors, threads), (last, descriptors_then, threads_then) = rows[0], rows[-1]
    assert last < first + (16 << 10), rows
    assert descriptors_then <= descriptors + 16 and threads_then <= threads + 16, rows
