"""1000 no-op tasks on other systems, with two workers each; median of the runs, startup not measured.

The comparison for a burst of 1000 no-op chunks (`peers.noop_1000(context)` returns it to another suite), from
the client's call until it holds every result. Also with batches of 64 tasks per call, as users write them
when tasks are short (the operator batches a burst's chunks without the user's involvement).

Peers do less than a burst: no admission through an API server, no leased memory, nothing on a disk, no record of
each task that survives a crash of the client or of the scheduler. And more: a task is any Python function, its
arguments and result are any objects, and a result can be used before the others are complete; a burst's chunks are
one kernel over a range of indices.
"""

import sys

from measure import Result, Unavailable

TASKS, RUNS = 1000, 5
SYSTEMS = ("ray_actors", "ray_actors_batched", "ray_tasks", "ray_tasks_batched", "dask", "dask_batched", "dask_partitions")

measured = {}


def install(context):
    """Returns the interpreter of an environment with the peers. Installs them once, into target/bench/peers."""
    environment, requirements = context.folder / "peers", context.root / "bench" / "peers" / "requirements.txt"
    python, done = environment / "bin" / "python", environment / "installed"
    if not done.exists() or done.read_text() != requirements.read_text():
        print("installing Ray, Dask and JAX into target/bench/peers (some minutes)", flush=True)
        try:
            context.check([sys.executable, "-m", "venv", environment])
            context.check([python, "-m", "pip", "install", "--quiet", "-r", requirements])
        except RuntimeError as error:
            raise Unavailable(f"the peers cannot be installed: {error}") from error
        done.write_text(requirements.read_text())
    return python


def noop_1000(context):
    """Returns {system: seconds of each run}. Systems are measured once, and the results are reused."""
    python = install(context)
    for system in SYSTEMS:
        if system not in measured:
            program = context.root / "bench" / "peers" / "noop.py"
            lines = context.json_lines([python, program, system, TASKS, RUNS], timeout=300)
            measured[system] = lines[-1]["seconds"]
    return measured


def run(context):
    for system, seconds in noop_1000(context).items():
        yield Result.of_runs(f"peers/{system}/noop_1000", seconds, "s")
