"""Sessions: client, gateway, agent and executor as separate processes, on the CPU plugin, compared with local JAX, raw TCP and peers.

e2e/examples/session_pool.rs starts API server, etcd, operator, agent and gateways; the clients are bench/sessions/*.py with the package in
its release build, and e2e/examples/session_client.rs. All comparisons are of pairs: remote and local runs alternate within the same minute.
"""

import contextlib
import os
import subprocess

import session_statistics
from measure import Result, Unavailable
from suites import peers

ROUNDS = 11
# The number of rounds is larger, because the goal is small compared with the variation between rounds.
RUST_ROUNDS = 21
BULK_ROUNDS = 5
PEER_ROUNDS = 5
MANY_ROUNDS = 3
PACED_ROUNDS = 3
# Size of the arrays over links of limited bandwidth, and the bandwidths in megabits per second; 0 means without a link.
PACED_MEBIBYTES, LINES = 16, (100, 1000, 0)
SIZES = (64, 256)
COUNTS = (1, 8, 64)
# Delay of the link in milliseconds, in each direction.
DELAY, DELAYED_ROUNDS = 15, 7
# Goals: overhead of a step over local JAX, in microseconds; throughput of long steps as a percentage of the local one; milliseconds that a
# readback may take beyond a round trip; throughput of bulk transfers as a percentage of a raw copy.
PYTHON_GOALS = {"direct": 100, "gateway": 150}
RUST_GOALS = {"direct": 40}
LONG_GOAL = 95
# Overhead of a synchronous step over local JAX, as a multiple of the overhead of a process on a pipe.
PIPE_GOAL = 1.2
READBACK_GOAL = 1
BULK_GOAL = 80
# Round trips that a loop over a slow link may take in addition: one, and a tenth for the proxy that simulates the link.
DELAYED_GOAL = 1.1
STEPS_OF = ("mlp_600", "mlp_32")
WITHIN = 600


class Parts:
    """Builds what is measured: binaries, plugin, and the Python interpreter that has the package."""

    def __init__(self, context):
        cargo = context.require("cargo")
        context.require("go")
        self.context = context
        self.plugin = context.check([context.root / "crates" / "pjrt" / "plugin"]).strip()
        self.python = context.check([context.root / "python" / "environment", "--release"]).strip()
        if not self.plugin or not self.python:
            raise Unavailable("there is no PJRT plugin or no JAX for this machine")
        examples = ["--example", "session_pool", "--example", "session_client"]
        context.check([cargo, "build", "--quiet", "--release", "--workspace", "--bins", *examples])
        release = context.target / "release"
        self.client, self.pool = (release / "examples" / name for name in ("session_client", "session_pool"))
        self.environment = {**os.environ, "SAHASRA_E2E_BIN_DIR": str(release), "SAHASRA_PJRT_PLUGIN": self.plugin}

    @contextlib.contextmanager
    def started(self):
        """Starts the pool. Yields the JSON that describes it, in the form that its programs take."""
        log = self.context.folder / "session_pool.log"
        with log.open("w") as words:
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": words, "text": True}
            pool = subprocess.Popen([self.pool], cwd=self.context.root, env=self.environment, **pipes)
            try:
                places = pool.stdout.readline()
                if not places.startswith("{"):
                    raise RuntimeError(f"the pool does not start; {log} says why:\n{log.read_text()[-4000:]}")
                yield places.strip()
            finally:
                pool.stdin.close()
                pool.wait(timeout=60)

    def lines(self, program, *arguments):
        """Returns the JSON lines of a program of bench/sessions."""
        command = [self.python, self.context.root / "bench" / "sessions" / program, *arguments]
        return self.context.json_lines(command, env=self.environment, timeout=WITHIN)

    def client_lines(self, *arguments):
        """Returns the JSON lines of the client in Rust."""
        return self.context.json_lines([self.client, *arguments], env=self.environment, timeout=WITHIN)


def from_python(parts, places):
    for line in parts.lines("steps.py", places, parts.plugin, ROUNDS):
        if line["name"] == "readback":
            way, trips = line["way"], line["round_trip"]
            more = [(read - trip) * 1e3 for read, trip in zip(line["readback"], trips, strict=True)]
            yield Result.of_runs(f"sessions/python/{way}/round_trip", [trip * 1e3 for trip in trips], "ms")
            yield Result.of_runs(f"sessions/python/{way}/readback_beyond_round_trip", more, "ms", goal=READBACK_GOAL)
        elif line["name"] == "matmul":
            seconds = line["seconds"]
            for way in PYTHON_GOALS:
                name = f"sessions/python/matmul_5ms/{way}/of_plugin"
                peer = {place: session_statistics.per_step(each, line["steps"]) / 1e3 for place, each in seconds.items()}
                values = session_statistics.share(seconds[way], seconds["plugin"])
                yield Result.of_runs(name, values, "%", goal=LONG_GOAL, better="higher", peer=peer)
        else:
            goals = PYTHON_GOALS if line["loop"] == "pipelined" else {}
            area = f"sessions/python/{line['loop']}"
            yield from session_statistics.overheads(area, line, goals, ("plugin", "jaxlib"), PYTHON_GOALS)
            if "pipe" in line["seconds"]:
                yield from session_statistics.overheads(area, line, {}, ("jaxlib",), ("pipe",))
                times = session_statistics.of_overhead(line, "direct", "pipe", "jaxlib")
                if times is not None:
                    yield Result(f"{area}/{line['name']}/direct/of_pipe", times, "x", goal=PIPE_GOAL)


def from_rust(parts, places, folder):
    for name in STEPS_OF:
        for line in parts.client_lines("steps", places, folder / name, RUST_ROUNDS):
            yield from session_statistics.overheads("sessions/rust/pipelined", line, RUST_GOALS, ("plugin",), ("direct", "gateway"))


def delayed(parts, places):
    [line] = parts.lines("delayed.py", places, DELAY, DELAYED_ROUNDS)
    seconds, trips = line["seconds"], line["round_trips"]
    area = f"sessions/delayed_{2 * DELAY}ms"
    for way in seconds:
        yield Result.of_runs(f"{area}/{way}/loop_{line['steps']}", [each * 1e3 for each in seconds[way]], "ms")
        yield Result.of_runs(f"{area}/{way}/round_trip", [each * 1e3 for each in trips[way]], "ms")
    more = session_statistics.round_trips_more(seconds["far"], seconds["near"], trips["far"], trips["near"])
    yield Result(f"{area}/loop_{line['steps']}/round_trips_more", more, "round trips", goal=DELAYED_GOAL)


def elsewhere(context):
    """Yields the results of the same step on other systems."""
    python = peers.install(context)
    for system in ("ray", "pipe"):
        program = context.root / "bench" / "peers" / "jitted.py"
        for line in context.json_lines([python, program, system, PEER_ROUNDS, *SIZES], timeout=WITHIN):
            if line["name"] == "bulk":
                name = f"sessions/peers/{system}/bulk_{line['mebibytes']}mib/{line['direction']}"
                yield Result.of_runs(name, session_statistics.rate(line["mebibytes"], line["seconds"]), "GB/s", better="higher")
            else:
                yield from session_statistics.overheads(f"sessions/peers/{line['loop']}", line, {}, ("local",), (system,))


def run(context):
    parts = Parts(context)
    folder = context.folder / "sessions"
    folder.mkdir(exist_ok=True)
    parts.lines("export_step.py", folder)
    with parts.started() as places:
        yield from from_python(parts, places)
        yield from from_rust(parts, places, folder)
        yield from delayed(parts, places)
        yield from session_statistics.bulk(parts.lines("bulk.py", places, BULK_ROUNDS, *SIZES), BULK_GOAL)
        yield from session_statistics.paced(parts.lines("paced.py", places, PACED_ROUNDS, PACED_MEBIBYTES, *LINES))
        yield from session_statistics.many(parts.client_lines("many", places, folder / "mlp_32", MANY_ROUNDS, *COUNTS))
    yield from elsewhere(context)

