"""Dispatch alone: 100 000 no-op chunks through one agent over loopback, without operator and API server.

A no-op chunk evaluates a parameter at the agent, launches an empty kernel once in an executor, and gives a result of 4 bytes,
which is returned over the stream, kept by the agent until it is acknowledged, and counted.
"""

from measure import Result

CHUNKS, RUNS = 100_000, 7


def run(context):
    cargo = context.require("cargo")
    context.check([cargo, "build", "--quiet", "--release", "--workspace", "--bins", "--example", "load"])
    program = context.target / "release" / "examples" / "load"
    lines = context.json_lines([program, "--chunks", CHUNKS, "--measured-runs", RUNS], timeout=300)
    values = [line["value"] for line in lines]
    yield Result.of_runs("dispatch/noop_100k", values, "chunks/s", better="higher", goal=50_000)
