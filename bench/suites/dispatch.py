"""Dispatch alone: 100 000 no-op chunks through one agent over loopback, without operator and API server.

A no-op chunk: a parameter evaluated at the agent, one launch of an empty kernel in an executor, a result of 4 bytes
that comes back over the stream, is kept by the agent until it is acknowledged, and is counted.
"""

from measure import Result

CHUNKS, RUNS = 100_000, 7


def run(context):
    cargo = context.require("cargo")
    context.check([cargo, "build", "--quiet", "--release", "--workspace", "--bins", "--example", "load"])
    program = context.target / "release" / "examples" / "load"
    lines = context.json_lines([program, "--chunks", CHUNKS, "--runs", RUNS], timeout=300)
    values = [line["value"] for line in lines]
    yield Result.of_runs("dispatch/noop_100k", values, "chunks/s", better="higher", goal=50_000)
