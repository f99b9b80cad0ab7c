#!/usr/bin/env python3
"""Writes dataset.h: two interleaved half moons with noise, the data on which the kernel trains.

The points come from a fixed linear congruential generator and are rounded to 1/64, so every
machine writes the same bytes and every coordinate is exact in float32. Run it again only to
change the data; `examples/generate --check` fails when dataset.h differs from its output.
"""

import math

TRAIN, VALIDATION, NOISE = 640, 256, 0.3


def uniforms(seed):
    """Knuth's MMIX generator: yields the upper 32 bits of the state as numbers in [0, 1)."""
    state = seed
    while True:
        state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
        yield (state >> 32) / 2**32


def points(count, source):
    for index in range(count):
        label = index % 2
        angle = math.pi * next(source)
        # The sum of twelve uniforms less six is close enough to a normal deviate.
        noise = [NOISE * (sum(next(source) for _ in range(12)) - 6) for _ in range(2)]
        x, y = (math.cos(angle), math.sin(angle)) if label == 0 else (1 - math.cos(angle), 0.5 - math.sin(angle))
        yield round((x - 0.5 + noise[0]) * 64) / 64, round((y - 0.25 + noise[1]) * 64) / 64, label


def table(name, count, source):
    yield f"DATA float {name}[{count}][3] = {{"
    row = []
    for x, y, label in points(count, source):
        row.append(f"{{{x!r}f,{y!r}f,{label}.f}}")
        if len(row) == 4:
            yield "    " + ", ".join(row) + ","
            row = []
    yield "};"


def text():
    source = uniforms(42)
    lines = [
        "// Written by dataset.py: two half moons with noise, {x, y, label}. Do not edit.",
        "// DATA is how the including file stores a table: __constant__ in the kernel, static const on the host.",
        f"#define TRAIN_COUNT {TRAIN}",
        f"#define VALIDATION_COUNT {VALIDATION}",
        "",
        *table("TRAIN", TRAIN, source),
        "",
        *table("VALIDATION", VALIDATION, source),
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    import pathlib

    pathlib.Path(__file__).with_name("dataset.h").write_text(text())
