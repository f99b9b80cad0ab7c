"""CUDA kernels as plain C on one core and as PTX on the CPU engine, and loading of modules; best of the runs.

The C file is bench/c/reference.c, compiled without and with vectorisation. The checks of both variants' results
must agree.
"""

import os
import shutil

from measure import Result, Unavailable

# No -ffast-math: sums keep their order. -fno-math-errno only allows sqrtf to be one instruction, and
# -fno-trapping-math allows a choice between two values to be a select. Fused multiply-adds are written explicitly.
COMMON = ["-std=gnu11", "-O3", "-march=x86-64-v3", "-fno-math-errno", "-ffp-contract=off"]
VARIANTS = {
    "scalar": ["-fno-tree-vectorize", "-fno-tree-slp-vectorize", "-DLANES=1"],
    "vector": ["-fno-trapping-math", "-DLANES=16"],
}

ENGINE = "kernel_times"
LEVELS = ("avx512", "v3", "baseline")
# Goals of the engine on one core with the widest instruction set: its time as a multiple of that of the scalar C.
SCALAR_GOALS = {"saxpy_1m": 40, "matmul_256": 8, "mandelbrot_512": 2.2}
OTHER_SCALAR_GOAL = 30
# Goals: a warm launch of one empty block in microseconds, and loading a module of about 100 kB in milliseconds.
EMPTY_LAUNCH_GOAL = 5
LOAD_GOAL = 15
# Goal of the speedup of two cores over one, for every kernel of several blocks.
TWO_CORES_GOAL = 1.7
TWO_CORES_ROUNDS = 3
TWO_CORES = ("saxpy_1m", "matmul_256", "mandelbrot_512", "histogram_1m", "nbody_1024", "softmax_256x1024", "sha256_16k")
# Kernels that use rsqrt.approx and ex2.approx, and the relative error allowed in their results.
APPROXIMATE = {"nbody_1024": 1e-5, "softmax_256x1024": 1e-5}


def reference(context):
    """Returns {variant: {benchmark: JSON line}} of the C file. Raises RuntimeError if the variants' results disagree."""
    compiler = shutil.which("gcc") or context.require("cc")
    source = context.root / "bench" / "c" / "reference.c"
    measured = {}
    for variant, flags in VARIANTS.items():
        program = context.folder / f"reference-{variant}"
        context.check([compiler, *COMMON, *flags, f'-DVARIANT="{variant}"', source, "-lm", "-o", program])
        measured[variant] = {line["name"]: line for line in context.json_lines([program])}
    for name, line in measured["scalar"].items():
        if measured["vector"][name]["check"] != line["check"]:
            raise RuntimeError(f"{name}: the C variants disagree: {line['check']} and {measured['vector'][name]['check']}")
    return measured


def engine(context):
    """Returns {instruction set: {benchmark: JSON line}} of the PTX engine on one thread, the widest set first."""
    cargo = context.require("cargo")
    if not (context.root / "crates" / "ptx" / "examples" / f"{ENGINE}.rs").exists():
        raise Unavailable(f"crates/ptx has no example {ENGINE}")
    context.check([cargo, "build", "--quiet", "--release", "--workspace", "--example", ENGINE])
    measured = {}
    for level in LEVELS:
        lines = context.json_lines([context.target / "release" / "examples" / ENGINE, "--instruction-set", level])
        # A level that this processor lacks runs as the next lower one, so a variant that occurs again is skipped.
        measured.setdefault(lines[0]["variant"], {line["name"]: line for line in lines})
    return measured


def one_and_two_threads(context):
    """Returns [{benchmark: JSON line}] of the engine on one thread and on two, with the widest instruction set. Each is the best of
    alternating rounds, so that neither has a quieter machine than the other.
    """
    program = context.target / "release" / "examples" / ENGINE
    best = [{}, {}]
    for _ in range(TWO_CORES_ROUNDS):
        for threads, found in enumerate(best, 1):
            for line in context.json_lines([program, "--threads", str(threads), *TWO_CORES]):
                if line["name"] not in found or line["value"] < found[line["name"]]["value"]:
                    found[line["name"]] = line
    return best


def own_goal(name):
    """Returns the goal of a measurement without a counterpart in C, or None."""
    if name == "empty_launch":
        return EMPTY_LAUNCH_GOAL
    return LOAD_GOAL if name.startswith("load_") else None


# Goal of the engine's speedup over ptoxide. The checks of saxpy, of ptoxide and of the engine, are after one run on fresh data.
PTOXIDE_GOAL = 20


def ptoxide(context):
    """Returns {benchmark: JSON line} of the scalar interpreter ptoxide, for the kernels that it can parse."""
    cargo = context.require("cargo")
    manifest = context.root / "bench" / "peers" / "ptoxide" / "Cargo.toml"
    target = context.folder / "ptoxide"
    context.check([cargo, "build", "--quiet", "--release", "--locked", "--manifest-path", manifest, "--target-dir", target])
    corpus = context.root / "crates" / "ptx" / "tests" / "corpus"
    return {line["name"]: line for line in context.json_lines([target / "release" / "ptoxide-times", corpus])}


def require_same_answer(name, c, ptx):
    """Raises RuntimeError unless the engine's result equals that of the C file, exactly or within the error of approximate instructions."""
    allowed = APPROXIMATE.get(name, 0) * abs(c["check"])
    if not abs(ptx["check"] - c["check"]) <= allowed:
        raise RuntimeError(f"{name}: the engine gives {ptx['check']!r}, C gives {c['check']!r}")


def result_of(name, line, **more):
    return Result(name, line["value"], line["unit"], runs=line["runs"], best=line["value"], median=line["median"],
                  worst=line["worst"], **more)


def run(context):
    c = reference(context)
    for variant, lines in c.items():
        for name, line in lines.items():
            yield result_of(f"c/{variant}/{name}", line)
    ptx = engine(context)
    for level, lines in ptx.items():
        for name, line in lines.items():
            both = {variant: c[variant][name] for variant in c if name in c[variant]}
            for other in both.values():
                require_same_answer(name, other, line)
            peers = {f"C {variant}": other["value"] for variant, other in both.items()}
            yield result_of(f"ptx/{level}/{name}", line, peer=peers, goal=own_goal(name))
    widest, lines = next(iter(ptx.items()))
    for name, line in lines.items():
        for variant in c:
            if name in c[variant]:
                goal = SCALAR_GOALS.get(name, OTHER_SCALAR_GOAL) if variant == "scalar" else None
                yield Result(f"ptx/{widest}/{name}/over_c_{variant}", line["value"] / c[variant][name]["value"], "x", goal=goal)
    if (os.cpu_count() or 1) >= 2:
        one, two = one_and_two_threads(context)
        for name, line in two.items():
            require_same_answer(name, c["scalar"][name], line)
            yield result_of(f"ptx/{widest}/{name}/two_threads", line, peer={"one thread": one[name]["value"]})
            gain = one[name]["value"] / line["value"]
            yield Result(f"ptx/{widest}/{name}/two_threads_gain", gain, "x", goal=TWO_CORES_GOAL, better="higher")
    for name, line in ptoxide(context).items():
        ours = lines[name]
        # The fma of ptoxide rounds twice, that of the engine and of C once.
        if not abs(line["check"] - ours["check"]) <= 1e-6 * abs(ours["check"]):
            raise RuntimeError(f"{name}: ptoxide gives {line['check']!r}, the engine {ours['check']!r}")
        yield result_of(f"ptoxide/{name}", line)
        yield Result(f"ptx/{widest}/{name}/under_ptoxide", line["value"] / ours["value"], "x", goal=PTOXIDE_GOAL, better="higher")
