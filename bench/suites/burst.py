"""Bursts of no-op chunks on a real control plane: operator, two agents, API server and etcd on this machine.

A no-op chunk: a parameter evaluated at the agent, one launch of an empty kernel in an executor, a result of
4 bytes kept and counted. Seconds run from the API server's acceptance to Complete as seen by a watch; the
chunks of index_100k give their index instead, and must add up. Resident memory is without executors.
"""

import os

from measure import Result


def run(context):
    cargo = context.require("cargo")
    context.require("go")
    context.check([cargo, "build", "--quiet", "--release", "--workspace", "--bins", "--example", "burst_times"])
    release = context.target / "release"
    program = release / "examples" / "burst_times"
    lines = context.json_lines([program], env={**os.environ, "SAHASRA_BIN_DIR": str(release)}, timeout=600)
    for line in lines:
        name = line["name"]
        if name == "resident":
            after = line["after"]
            yield Result(f"burst/resident_after_{after}/operator", line["operator"], "MiB", goal=50)
            yield Result(f"burst/resident_after_{after}/agent", max(line["agents"]), "MiB", goal=40)
            continue
        goal = 0.3 if name == "noop_1000" else None
        yield Result.of_runs(f"burst/{name}/accepted_to_complete", line["seconds"], "s", goal=goal)
        yield Result.of_runs(f"burst/{name}/request_to_complete", line["from_request"], "s")
