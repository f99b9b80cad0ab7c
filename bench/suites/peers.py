"""1000 no-op tasks on other systems, two workers each; median of the runs, starting up not counted.

What a burst of 1000 no-op chunks is compared with (`peers.noop_1000(context)` gives it to another suite).
They do less than a burst: no admission through an API server, no leased memory, no durable account.
"""

from measure import Result, Unavailable

TASKS, RUNS = 1000, 5
SYSTEMS = ("ray_actors", "ray_tasks", "dask")
INSTALL = "python3 -m venv target/bench/peers && target/bench/peers/bin/pip install -r bench/peers/requirements.txt"

measured = {}


def noop_1000(context):
    """{system: seconds of each run}; measured once, then remembered."""
    python = context.folder / "peers" / "bin" / "python"
    if not python.exists():
        raise Unavailable(f"the peers are not installed: {INSTALL}")
    for system in SYSTEMS:
        if system not in measured:
            program = context.root / "bench" / "peers" / "noop.py"
            lines = context.json_lines([python, program, system, TASKS, RUNS], timeout=300)
            measured[system] = lines[-1]["seconds"]
    return measured


def run(context):
    for system, seconds in noop_1000(context).items():
        yield Result.of_runs(f"peers/{system}/noop_1000", seconds, "s")
