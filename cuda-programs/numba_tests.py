"""Runs the test files that the package numba-cuda carries, each in a process of its own, and writes their results.

    python numba_tests.py RESULTS.json [--seconds SECONDS] [--jobs JOBS] [--only TEXT]

A result has the numbers of tests that passed, failed and were skipped, and the last line of each failure. A file that does not end in its time, or
whose process dies, is counted with the tests that it had finished.
"""

import argparse
import collections
import concurrent.futures
import json
import os
import pathlib
import re
import signal
import subprocess
import sys

# Machine code and libraries that a device for PTX does not have, by the name and message of a test that fails without them.
NEEDS = {
    "machine code": r"NO_BINARY_FOR_GPU|no kernel image|cuobjdump|nvdisasm|SASS|test_set_registers",
    "nvJitLink": r"nvjitlink|nvJitLink|LTO",
    "NVIDIA's device runtime library": r"external function cuda\w+",
    "CuPy": r"No module named 'cupy'",
}


def modules() -> list[str]:
    """Names of the modules with tests, in order."""
    import numba_cuda

    root = pathlib.Path(numba_cuda.__file__).parent / "numba/cuda/tests"
    files = sorted(root.rglob("test_*.py"))
    return ["numba.cuda.tests." + ".".join(file.relative_to(root).with_suffix("").parts) for file in files]


def reason(failure: str) -> str:
    """What a failed test lacks: one of NEEDS, or the first line of its message, with the test."""
    test = re.search(r"^(?:ERROR|FAIL): (\S+)", failure, re.M)
    # The message follows the last line of the traceback, which is indented.
    message = re.split(r"^\s+.*\n", failure.strip() + "\n", flags=re.M)[-1].strip()
    for need, pattern in NEEDS.items():
        if re.search(pattern, f"{test[1] if test else ''}\n{message}"):
            return need
    lines = message.splitlines()
    return f"{test[1] if test else 'a test'}: {lines[0][:120] if lines else 'no message'}"


def run(module: str, seconds: float) -> dict:
    """Runs the tests of a module."""
    command = [sys.executable, "-W", "ignore", "-m", "unittest", "-v", module]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", start_new_session=True)
    try:
        output, _ = process.communicate(timeout=seconds)
        end = None if process.returncode in (0, 1, 5) else f"the process ended with {process.returncode}"
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output, _ = process.communicate()
        end = f"not done after {seconds:g} s"
    results = collections.Counter(re.findall(r"\.\.\. (?:.*?)(ok|FAIL|ERROR|skipped|expected failure)(?=$|[ '\"])", output, re.M))
    skipped = collections.Counter(text[:100] for text in re.findall(r"\.\.\. skipped ['\"](.*)['\"]$", output, re.M))
    failures = re.split(r"^={70}$", output, flags=re.M)[1:]
    # A test fails once, however many of its subtests do.
    reasons = {}
    for failure in failures:
        heading = re.search(r"^(?:ERROR|FAIL): (\S+ \(\S+?\))", failure, re.M)
        reasons[heading[1] if heading else failure] = reason(re.split(r"^-{70}$\nRan ", failure, flags=re.M)[0])
    failed = collections.Counter(reasons.values())
    ran = re.search(r"^Ran (\d+) tests?", output, re.M)
    passed = results["ok"] + results["expected failure"]
    if ran and end is None:
        summary = re.search(r"\bskipped=(\d+)", output.splitlines()[-1])
        left_out = int(summary[1]) if summary else 0
        return {
            "passed": int(ran[1]) - len(reasons) - left_out,
            "failed": len(reasons),
            "skipped": left_out,
            "reasons": dict(failed),
            "skips": dict(skipped),
            "end": None,
        }
    return {
        "passed": passed,
        "failed": results["FAIL"] + results["ERROR"] + (1 if end else 0),
        "skipped": results["skipped"],
        "reasons": dict(failed) | ({end: 1} if end else {}),
        "skips": dict(skipped),
        "end": end,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", type=pathlib.Path)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--only", default="")
    arguments = parser.parse_args()
    results = {}
    with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        runs = {module: pool.submit(run, module, arguments.seconds) for module in modules() if arguments.only in module}
        for module, result in runs.items():
            results[module] = result.result()
            print(module.removeprefix("numba.cuda.tests."), json.dumps(results[module]), flush=True)
            arguments.results.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
