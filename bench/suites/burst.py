"""1000 no-op chunks on a real control plane, and as many no-op tasks on other systems, from the request to the results in hand.

A no-op chunk evaluates a parameter at the agent, launches an empty kernel once in an executor, and keeps and counts a
result of 4 bytes. Operator, two agents, API server and an etcd that waits for the disk at every write run on this
machine. request_to_results is compared with the peers, in the same run and with the same start and end: from the
client's request until it holds every result. accepted_to_complete runs from the API server's acceptance to Complete as
seen by a watch. The chunks of index_100k return their index instead, and the sum of the indices is checked. Resident
memory excludes executors. bench/suites/peers.py lists what peers do less and more.
"""

import os
import statistics

from measure import Result, Unavailable
from suites import peers

# The peer with warm processes and one call per task, over which bursts should be twice as fast.
COMPARED = "ray_actors"


def run(context):
    cargo = context.require("cargo")
    context.require("go")
    context.check([cargo, "build", "--quiet", "--release", "--workspace", "--bins", "--example", "burst_times"])
    release = context.target / "release"
    program = release / "examples" / "burst_times"
    lines = context.json_lines([program], env={**os.environ, "SAHASRA_E2E_BIN_DIR": str(release)}, timeout=600)
    missing, others = None, {}
    try:
        others = {system: statistics.median(seconds) for system, seconds in peers.noop_1000(context).items()}
    except Unavailable as reason:
        missing = reason
    for line in lines:
        name = line["name"]
        if name == "fsync":
            yield Result.of_runs("burst/disk/fsync_4k", line["seconds"], "s")
            continue
        if name == "resident":
            after = line["after"]
            yield Result(f"burst/resident_after_{after}/operator", line["operator"], "MiB", goal=50)
            yield Result(f"burst/resident_after_{after}/agent", max(line["agents"]), "MiB", goal=40)
            continue
        compared = name == "noop_1000"
        yield Result.of_runs(
            f"burst/{name}/request_to_results", line["results"], "s", goal=0.1 if compared else None, peer=others if compared else {}
        )
        if compared and COMPARED in others:
            ratio = statistics.median(line["results"]) / others[COMPARED]
            yield Result(f"burst/{name}/of_{COMPARED}", ratio, "ratio", goal=0.5)
        yield Result.of_runs(f"burst/{name}/accepted_to_complete", line["accepted"], "s")
        yield Result.of_runs(f"burst/{name}/request_to_complete", line["request"], "s")
    if missing:
        raise missing
