"""Shared by all suites: the result type, the build folder, and execution of programs that print results."""

import dataclasses
import json
import os
import pathlib
import platform
import shutil
import statistics
import subprocess


class Unavailable(Exception):
    """The suite cannot run here; the message says what is missing."""


@dataclasses.dataclass
class Result:
    """A measurement. `value`, a best or a median as the suite states, is compared with the goal."""

    name: str
    value: float
    unit: str
    goal: float | None = None
    better: str = "lower"
    peer: dict[str, float] = dataclasses.field(default_factory=dict)
    runs: int = 0
    best: float = 0.0
    median: float = 0.0
    worst: float = 0.0

    @classmethod
    def of_runs(cls, name, values, unit, *, value="median", better="lower", **more):
        """A result of repeated measurements, whose value is the `value` ("best" or "median") of the runs."""
        ordered = sorted(values, reverse=better == "higher")
        spread = {"best": ordered[0], "median": statistics.median(ordered), "worst": ordered[-1]}
        return cls(name, spread[value], unit, better=better, runs=len(ordered), **spread, **more)

    def met(self):
        return self.value <= self.goal if self.better == "lower" else self.value >= self.goal

    def as_json(self):
        fields = {"name": self.name, "value": self.value, "unit": self.unit, "goal": self.goal, "better": self.better}
        if self.peer:
            fields["peer"] = self.peer
        if self.runs:
            fields["spread"] = {"runs": self.runs, "best": self.best, "median": self.median, "worst": self.worst}
        return fields


class Context:
    """The root of the repository, and the folder under target/ in which suites build and write."""

    def __init__(self, root):
        self.root = root
        self.target = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", root / "target"))
        self.folder = root / "target" / "bench"
        self.folder.mkdir(parents=True, exist_ok=True)

    def machine(self):
        """Describes the machine as far as needed to judge a result, without identifying it."""
        model = platform.processor()
        try:
            for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
                if line.startswith("model name"):
                    model = line.split(":", 1)[1].strip()
                    break
        except OSError:
            pass
        return f"{len(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else os.cpu_count()} cores, {platform.machine()}, {model}"

    def require(self, program):
        path = shutil.which(program)
        if path is None:
            raise Unavailable(f"{program} is not installed")
        return path

    def check(self, command, **more):
        """Runs a command in the root and returns its standard output. Raises RuntimeError with the output if the command fails."""
        result = subprocess.run([str(c) for c in command], cwd=self.root, capture_output=True, text=True, **more)
        if result.returncode != 0:
            raise RuntimeError(f"{' '.join(map(str, command))} exited with {result.returncode}:\n{result.stdout}{result.stderr}")
        return result.stdout

    def json_lines(self, command, **more):
        """Returns the JSON objects that a program prints, one per line; other lines are ignored."""
        return [json.loads(line) for line in self.check(command, **more).splitlines() if line.startswith("{")]
