"""CUDA driver calls: in process, on a session at its worker, and through the gateway, with and without a delay; plain TCP beside them. Copies at
the worker are made over TCP (`direct`) and through shared memory (`shared`). The last part kills workers and measures when their programs have
the error.

`sahasra up` serves the pool. The client is crates/cuda-driver/examples/rates.rs on the driver library of this repository. Published figures
of peers are in docs/benchmarks.md.
"""

import contextlib
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request

from measure import Result

ROUNDS = 5
# Goals on a session at its worker, in microseconds, and for copies as a share of plain TCP.
GOALS = {"read 4 bytes": 15, "launch, 1000 in a row": 1, "launch, with all executed": 2, "allocate and free": 1, "attribute": 0.13}
COPY_GOAL = 0.8
# Goal of copies between the device and page-locked memory through shared memory, as a multiple of plain TCP.
SHARED_GOAL = 3
COPIES = ("copy to the device", "copy to the host")
PINNED_COPIES = ("copy pinned memory to the device", "copy to pinned memory of the host")
# Delay of a link in milliseconds, in each direction, and round trips over it: of a program's start, and of a loop of 100 steps that read a number each.
DELAY, DELAYED_ROUNDS = 15, 3
TRIP_GOALS = {"start": 3, "loop of 100 steps": 101}
# Milliseconds from the end of a worker until a call of its program has returned the error.
LOST_GOAL = 100


class Pool:
    """A pool of `sahasra up`, for sessions of engine cuda."""

    def __init__(self, process, url, token):
        self.process, self.url, self.token = process, url, token

    def session(self, name):
        body = json.dumps({"metadata": {"name": name}, "spec": {"engine": "cuda", "vram": "1Gi"}}).encode()
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"}
        place = f"{self.url}/v1/namespaces/default/sessions"
        urllib.request.urlopen(urllib.request.Request(place, body, headers), timeout=60).close()
        query = urllib.request.Request(f"{place}/{name}?waitFor=Ready&timeoutSeconds=60", headers=headers)
        urllib.request.urlopen(query, timeout=90).close()
        return f"{self.url}/default/{name}"


@contextlib.contextmanager
def pool(binary):
    """Starts a pool, and ends it."""
    with tempfile.TemporaryDirectory() as state:
        environment = {**os.environ, "XDG_STATE_HOME": state}
        for name in ("KUBECONFIG", "SAHASRA_TOKEN", "SAHASRA_TOKEN_FILE"):
            environment.pop(name, None)
        token = os.path.join(state, "token")
        command = [binary, "up", "--workers", "1", "--port", "0", "--token-file", token]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment)
        try:
            found = re.search(r"127\.0\.0\.1:\d+", process.stdout.readline())
            if found is None:
                raise RuntimeError("sahasra up does not come up")
            yield Pool(process, f"http://{found.group()}", open(token).read().strip())
        finally:
            process.send_signal(signal.SIGINT)
            process.communicate()


def measure(context, program, *options, **variables):
    """Returns what the program prints, by name."""
    lines = context.json_lines([program, "--json", *options], env={**os.environ, **variables}, timeout=600)
    return {line["name"]: line for line in lines}


@contextlib.contextmanager
def delayed(url):
    """Yields the URL of a session behind a link with a delay."""
    scheme, _, rest = url.partition("://")
    address, _, path = rest.partition("/")
    command = [sys.executable, pathlib.Path(__file__).parents[1] / "sessions" / "delay_proxy.py", address, str(DELAY)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield f"{scheme}://127.0.0.1:{int(process.stdout.readline())}/{path}"
    finally:
        process.communicate()


def trips(context, program, session):
    """Yields the round trips of a program through the gateway: the time that a link with a delay adds, by its delay."""
    # Shared memory would not go over the link.
    session = {**session, "SAHASRA_CUDA_SHARED_MEMORY": "0"}
    added = {name: [] for name in TRIP_GOALS}
    with delayed(session["SAHASRA_CUDA"]) as far:
        for _ in range(DELAYED_ROUNDS):
            near_ms = measure(context, program, "--training", **session)
            time.sleep(0.2)
            far_ms = measure(context, program, "--training", **{**session, "SAHASRA_CUDA": far})
            time.sleep(0.2)
            for name, values in added.items():
                values.append((far_ms[name]["value"] - near_ms[name]["value"]) / (2 * DELAY))
    for name, goal in TRIP_GOALS.items():
        # The proxy itself takes part of a round trip, so the goal is a tenth more.
        yield Result.of_runs(f"delayed {2 * DELAY} ms: {name}", added[name], "round trips", goal=goal * 1.1)


def lost(program, binary, libraries):
    """Yields the time from SIGKILL for a pool, and so for its worker, until a program on it has the error."""
    measured = []
    for _ in range(ROUNDS):
        with pool(binary) as served:
            session = {"SAHASRA_CUDA": served.session("lost"), "SAHASRA_TOKEN": served.token, "SAHASRA_CUDA_DIRECT": "1"}
            variables = {**os.environ, **session, "LD_LIBRARY_PATH": libraries}
            with subprocess.Popen([program, "--until-lost"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=variables) as user:
                if user.stdout.readline() != "running\n":
                    raise RuntimeError("the program does not start")
                time.sleep(0.2)
                killed = time.monotonic()
                served.process.kill()
                error = user.stdout.readline().strip()
                measured.append((time.monotonic() - killed) * 1e3)
            if error != "CUDA_ERROR_DEVICE_UNAVAILABLE":
                raise RuntimeError(f"a program whose worker was killed got {error or 'nothing'}")
    yield Result.of_runs("worker killed: error", measured, "ms", goal=LOST_GOAL)


def run(context):
    cargo = context.require("cargo")
    context.check([cargo, "build", "--quiet", "--release", "--bin", "sahasra"])
    context.check([cargo, "build", "--quiet", "--release", "--package", "sahasra-cuda-driver", "--example", "rates"])
    libraries = context.check([context.root / "crates" / "cuda-driver" / "library", "--release"]).strip()
    release = context.target / "release"
    program = release / "examples" / "rates"
    with pool(release / "sahasra") as served:
        session = {"SAHASRA_CUDA": served.session("bench"), "SAHASRA_TOKEN": served.token, "LD_LIBRARY_PATH": libraries}
        ways = {
            "in process": {"SAHASRA_CUDA": "cpu:", "LD_LIBRARY_PATH": libraries},
            "direct": {**session, "SAHASRA_CUDA_DIRECT": "1", "SAHASRA_CUDA_SHARED_MEMORY": "0"},
            "gateway": {**session, "SAHASRA_CUDA_SHARED_MEMORY": "0"},
            "shared": {**session, "SAHASRA_CUDA_DIRECT": "1"},
        }
        rounds = {way: [] for way in (*ways, "tcp")}
        for _ in range(ROUNDS):
            for way, variables in ways.items():
                rounds[way].append(measure(context, program, **variables))
                # The session frees what the program had before the next one begins.
                time.sleep(0.2)
            rounds["tcp"].append(measure(context, program, "--tcp"))
        over_link = list(trips(context, program, session))
    losses = list(lost(program, release / "sahasra", libraries))
    values = {way: {name: [run[name]["value"] for run in runs] for name in runs[0]} for way, runs in rounds.items()}
    units = {name: line["unit"] for runs in rounds.values() for name, line in runs[0].items()}
    tcp = Result.of_runs("tcp: round trip", values["tcp"]["round trip"], "us")
    bulk = Result.of_runs("tcp: copy", values["tcp"]["copy"], "GB/s", better="higher")
    yield tcp
    yield bulk
    yield from over_link
    yield from losses
    for way in ways:
        for name, measured in values[way].items():
            goal, peer = None, {}
            better = "higher" if units[name] == "GB/s" else "lower"
            if way == "direct":
                goal = GOALS.get(name)
                if name in COPIES:
                    goal, peer = COPY_GOAL * bulk.median, {"tcp": bulk.median}
                if name in ("read 4 bytes", "fill and synchronise"):
                    peer = {"tcp": tcp.median}
            if way == "shared" and name in COPIES + PINNED_COPIES:
                goal, peer = SHARED_GOAL * bulk.median if name in PINNED_COPIES else None, {"tcp": bulk.median}
            yield Result.of_runs(f"{way}: {name}", measured, units[name], better=better, goal=goal, peer=peer)
