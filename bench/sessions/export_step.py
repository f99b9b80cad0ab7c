"""Writes the training step for a client in Rust: the program, the concatenated bytes of its arguments, and their types and shapes.

    export_step.py FOLDER      # the step of `mlp_600`, `mlp_32`: NAME.stablehlo, NAME.data, NAME.json
"""

import json
import pathlib
import sys

import numpy as np
from mlp import POINTS, beginning, train_step
from sahasra.elements import element_type
from sahasra.jit import Traced

folder = pathlib.Path(sys.argv[1])
for name, points in POINTS.items():
    state, rest = beginning(points)
    step = Traced(train_step, donate_argnums=0)
    leaves, tree = step.flatten((state, *rest), {})
    exported = step.export("cpu", tree, step.avals(leaves, tree))
    if exported.kept != tuple(range(len(leaves))):
        raise SystemExit(f"{name} does not use all of its arguments")
    arrays = [np.ascontiguousarray(leaf) for leaf in leaves]
    arguments = [{"element_type": element_type(array.dtype), "dimensions": array.shape, "bytes": array.nbytes} for array in arrays]
    (folder / f"{name}.stablehlo").write_bytes(exported.code)
    (folder / f"{name}.data").write_bytes(b"".join(array.tobytes() for array in arrays))
    # The first results of a step are the first arguments of the next one.
    facts = {"arguments": arguments, "donated": len(step.donated_leaves(tree)), "results": len(exported.outputs)}
    (folder / f"{name}.json").write_text(json.dumps(facts))
