#!/usr/bin/env python3
"""Host check of the saxpy example.

    verify.py results.csv      checks the results of a burst
    verify.py --expect         prints the rows that a burst should give

A row is a chunk: its index, then its 32 values. Every number here is a multiple of 1/16 and small, so
the results are exact whether or not multiply and add are fused, and the check allows no difference.
Exits with 0 only if each of the 8 chunks occurs once and all 256 values are correct.
"""

import csv
import sys

CHUNKS, PART, A = 8, 32, 2.5


def expected(chunk):
    return [A * (i / 8) + (100 - i) for i in range(chunk * PART, (chunk + 1) * PART)]


def differences(rows):
    seen = [0] * CHUNKS
    for line, row in enumerate(rows, start=2):
        try:
            # The values are in separate columns, or in one column, separated by blanks.
            index, values = int(row[0]), [float(v) for cell in row[1:] for v in cell.split()]
        except (ValueError, IndexError):
            yield f"line {line}: not an index and numbers: {row}"
            continue
        if not 0 <= index < CHUNKS:
            yield f"line {line}: no chunk has index {index}"
            continue
        seen[index] += 1
        want = expected(index)
        if len(values) != PART:
            yield f"line {line}: {len(values)} values, expected {PART}"
        for i, (got, wanted) in enumerate(zip(values, want)):
            if got != wanted:
                yield f"line {line}: element {index * PART + i} is {got}, expected {wanted}"
    for index, times in enumerate(seen):
        if times != 1:
            yield f"index {index} occurs {times} times, not once"


def main(arguments):
    if arguments == ["--expect"]:
        print("index," + ",".join(f"output0[{i}]" for i in range(PART)))
        for chunk in range(CHUNKS):
            print(f"{chunk}," + ",".join(f"{v:.9g}" for v in expected(chunk)))
        return 0
    if len(arguments) != 1:
        print("usage: verify.py RESULTS.csv | verify.py --expect", file=sys.stderr)
        return 2
    with open(arguments[0], newline="") as file:
        rows = csv.reader(file)
        if next(rows, ["?"])[0] != "index":
            print("line 1: not a header that begins with index", file=sys.stderr)
            return 1
        found = list(differences(rows))
    for difference in found[:10]:
        print(difference, file=sys.stderr)
    if found:
        print(f"{len(found)} differences", file=sys.stderr)
        return 1
    print(f"{CHUNKS * PART} elements of {A} * x + y are right, bit for bit")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
