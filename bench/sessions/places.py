"""Access to the pool: the first argument of every program here is the JSON that e2e/examples/session_pool.rs prints."""

import contextlib
import json
import pathlib
import subprocess
import sys

from sahasra import RemoteJaxSession, SahasraClient

PLACES = json.loads(sys.argv[1])
# Transports to a session, as accepted by `opened`.
WAYS = ("direct", "direct_tls", "gateway", "gateway_tls")


def client(way="gateway", url=None):
    authority = pathlib.Path(PLACES["authority"]).read_text() if way == "gateway_tls" else None
    url = url or PLACES["gateway_tls" if way == "gateway_tls" else "gateway"]
    return SahasraClient(url, token=PLACES["token"], namespace=PLACES["namespace"], authority=authority)


@contextlib.contextmanager
def opened(way, vram="1Gi", url=None, compression="adaptive"):
    """Opens a session over a transport of `WAYS`, through the gateway at `url` if given."""
    options = {"gpu_class": "cpu", "direct": way.startswith("direct"), "compression": compression}
    if way == "direct_tls":
        # A separate worker, because a worker accepts either TLS or plain connections.
        worker = PLACES["agent_tls"]
        options |= {"gpu_class": worker["class"], "authority": pathlib.Path(worker["authority"]).read_text(), "server_name": worker["server_name"]}
    with RemoteJaxSession.create(client(way, url), vram=vram, **options) as session:
        yield session


@contextlib.contextmanager
def behind(program, setting):
    """Starts a proxy program of this folder, which simulates a link with this delay or bandwidth. Yields the URL of the gateway behind it."""
    command = [sys.executable, pathlib.Path(__file__).with_name(program), PLACES["gateway"].removeprefix("http://"), str(setting)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield f"http://127.0.0.1:{int(process.stdout.readline())}"
    finally:
        process.stdin.close()
        process.wait()


def say(**measurements):
    """Prints one JSON line for the suite."""
    print(json.dumps(measurements), flush=True)
