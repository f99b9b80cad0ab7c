"""CUDA kernels: as plain C on one core, and as PTX on the CPU engine; best of the runs.

The C file is bench/c/reference.c, compiled without and with vectorisation.
"""

import shutil

from measure import Result, Unavailable

# No -ffast-math: sums keep their order. -fno-math-errno only lets sqrtf be one instruction, and
# -fno-trapping-math lets a choice between two values be a select. Fused multiply-adds are written out.
COMMON = ["-std=gnu11", "-O3", "-march=x86-64-v3", "-fno-math-errno", "-ffp-contract=off"]
VARIANTS = {
    "scalar": ["-fno-tree-vectorize", "-fno-tree-slp-vectorize", "-DLANES=1"],
    "vector": ["-fno-trapping-math", "-DLANES=16"],
}


def reference(context):
    """{variant: {benchmark: what it printed}} of the C file."""
    compiler = shutil.which("gcc") or context.require("cc")
    source = context.root / "bench" / "c" / "reference.c"
    figures = {}
    for variant, flags in VARIANTS.items():
        program = context.folder / f"reference-{variant}"
        context.check([compiler, *COMMON, *flags, f'-DVARIANT="{variant}"', source, "-lm", "-o", program])
        figures[variant] = {line["name"]: line for line in context.json_lines([program])}
    for name, line in figures["scalar"].items():
        if figures["vector"][name]["check"] != line["check"]:
            raise RuntimeError(f"{name}: the C variants disagree: {line['check']} and {figures['vector'][name]['check']}")
    return figures


def result_of(name, line, **more):
    return Result(name, line["value"], line["unit"], runs=line["runs"], best=line["value"], median=line["median"],
                  worst=line["worst"], **more)


def run(context):
    c = reference(context)
    for variant, lines in c.items():
        for name, line in lines.items():
            yield result_of(f"c/{variant}/{name}", line)
