"""System calls of two lines of PyTorch, counted by strace: without the CUDA libraries, in process on the CPU engine, and on a session.

    system_calls.py PYTHON LIBRARIES SAHASRA

PYTHON is an interpreter with PyTorch, LIBRARIES the folder of the CUDA libraries, SAHASRA the binary that serves the session.
"""

import os
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
LINES = {
    "torch.cuda.is_available()": "import torch; torch.cuda.is_available()",
    "torch.zeros(10, 10).to('cuda:0')": "import torch; torch.zeros(10, 10).to('cuda:0')",
}
# The same on a machine without a device.
WITHOUT = {**LINES, "torch.zeros(10, 10).to('cuda:0')": "import torch; torch.zeros(10, 10)"}
COUNTED = ("read", "write", "close")
LIMIT_SECONDS = 300


def traced(report: pathlib.Path, command: list[str]) -> list[str]:
    """The command that counts the system calls of a command, also those of its threads, and the time in them."""
    return ["strace", "-f", "-c", "-o", str(report), "-e", "trace=read,write,open,close,%network", *command]


def counts(report: pathlib.Path) -> list[str]:
    """Returns the calls of each kind, those of sockets, and the milliseconds in all of them."""
    calls, others, seconds = dict.fromkeys(COUNTED, 0), 0, 0.0
    for row in report.read_text().splitlines():
        # Share, seconds, microseconds a call, calls, errors if there are any, name.
        words = row.split()
        if len(words) < 5 or not words[3].isdigit() or words[-1] == "total":
            continue
        seconds += float(words[1])
        if words[-1] in calls:
            calls[words[-1]] = int(words[3])
        elif words[-1] != "open":
            others += int(words[3])
    return [str(calls[name]) for name in COUNTED] + [str(others), f"{seconds * 1e3:.1f}"]


def main() -> None:
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    python, libraries, sahasra = sys.argv[1:]
    plain = {name: value for name, value in os.environ.items() if name not in ("SAHASRA_CUDA", "LD_LIBRARY_PATH", "LD_PRELOAD")}
    library = {"LD_LIBRARY_PATH": libraries, "LD_PRELOAD": f"{libraries}/libcudart.so.13"}
    # Only the counted program gets the libraries: neither strace nor the pool.
    inside = ["env", *(f"{name}={value}" for name, value in library.items())]
    pool = [str(ROOT / "examples" / "with-pool"), sahasra, "0"]
    ways = {
        "without the libraries": ([], [], WITHOUT),
        "in process": ([], [*inside, "SAHASRA_CUDA=cpu:", "SAHASRA_CUDA_MEMORY=1Gi"], LINES),
        "on a session": (pool, [*inside, "SAHASRA_CUDA={url}"], LINES),
    }
    print(f"{'line of PyTorch':34} {'device':22} {'reads':>6} {'writes':>6} {'closes':>6} {'socket calls':>12} {'ms in them':>10}")
    for name in LINES:
        for way, (before, within, lines) in ways.items():
            with tempfile.TemporaryDirectory() as folder:
                report = pathlib.Path(folder, "report")
                command = traced(report, [*within, python, "-c", lines[name]])
                subprocess.run([*before, *command], env=plain, check=True, timeout=LIMIT_SECONDS, stdout=subprocess.DEVNULL)
                reads, writes, closes, sockets, milliseconds = counts(report)
            print(f"{name:34} {way:22} {reads:>6} {writes:>6} {closes:>6} {sockets:>12} {milliseconds:>10}", flush=True)


if __name__ == "__main__":
    main()
