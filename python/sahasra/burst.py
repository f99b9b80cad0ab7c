"""One kernel over many sets of parameters on the whole pool."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .errors import ExecutionError, InvalidArgumentError, WaitTimeoutError
from .kernel import parameters_of

if TYPE_CHECKING:
    import pandas

    from .client import SahasraClient

#: Values that a parameter may list in a BurstJob.
MAX_VALUES = 4096

_TYPES = {"float32": "f32", "float64": "f64", "int32": "s32", "int64": "s64", "uint32": "u32", "uint64": "u64"}
_AGGREGATES = ("argmin", "argmax", "topK", "sum", "mean", "concat", "none")


def spec_of(
    ptx: str,
    parameters: Any,
    *,
    entry: str | None = None,
    args: Sequence[Any] | None = None,
    grid: int | Sequence[int] = 1,
    block: int | Sequence[int] = 256,
    output: tuple[str, int] = ("f32", 1),
    aggregate: str | Mapping[str, Any] | None = None,
    vram: str = "512Mi",
    slices: int | None = None,
    max_retries: int = 3,
) -> dict[str, Any]:
    """The ``BurstJob`` that :func:`run` creates. Raises :class:`InvalidArgumentError` for what does not fit together."""
    entries = re.findall(r"\.entry\s+([\w$%]+)", re.sub(r"//[^\n]*|/\*.*?\*/", " ", ptx, flags=re.S))
    if entry is None:
        if len(entries) != 1:
            raise InvalidArgumentError(f"the PTX has {len(entries)} kernels: name one as entry")
        entry = entries[0]
    kinds = parameters_of(ptx, entry)
    columns = {str(name): np.asarray(parameters[name]) for name in (parameters.keys() if hasattr(parameters, "keys") else parameters)}
    lengths = {column.shape for column in columns.values()}
    if not columns or len(lengths) != 1 or len(next(iter(lengths))) != 1:
        raise InvalidArgumentError("parameters are columns of one length: a DataFrame or a dict of one-dimensional arrays")
    count = next(iter(lengths))[0]
    if not 1 <= count <= MAX_VALUES:
        raise InvalidArgumentError(f"a burst takes 1 to {MAX_VALUES:,} rows, not {count:,}: write a BurstJob with formulas for more")
    named = list(columns) if args is None else [arg for arg in args if isinstance(arg, str)]
    unknown = [name for name in named if name not in columns]
    if unknown:
        raise InvalidArgumentError(f"args name {unknown}, which are no columns")
    # The first parameter is the results' address unless args say otherwise; the others take the columns in order.
    order: list[Any] = [{"output": {"type": output[0], "count": output[1]}}, *columns] if args is None else list(args)
    if len(order) != len(kinds):
        raise InvalidArgumentError(f"{entry} takes {len(kinds)} arguments, and there are {len(order)}: say which as args")
    types: dict[str, str] = {}
    arguments = []
    for argument, kind in zip(order, kinds):
        if isinstance(argument, str):
            types[argument] = kind if kind in _TYPES.values() else {"b32": "u32", "b64": "u64"}.get(kind, kind)
            arguments.append({"parameter": argument})
        else:
            arguments.append(argument)
    declared = {}
    for name, column in columns.items():
        declared_type = types.get(name) or _TYPES.get(column.dtype.name)
        if declared_type is None or column.dtype.kind not in "biuf":
            raise InvalidArgumentError(f"column {name} of {column.dtype} is no parameter of a kernel")
        declared[name] = {"type": declared_type, "list": [float(value) if declared_type.startswith("f") else int(value) for value in column.tolist()]}
    spec: dict[str, Any] = {
        "kernel": {
            "ptx": {"inline": ptx},
            "entry": entry,
            "grid": [grid] if isinstance(grid, int) else list(grid),
            "block": [block] if isinstance(block, int) else list(block),
            "args": arguments,
        },
        "chunks": {"count": count, "parameters": declared},
        "slice": {"vram": vram},
        "retryPolicy": {"maxRetries": max_retries},
    }
    if slices is not None:
        spec["slices"] = {"min": 1, "max": slices}
    if aggregate is not None:
        if isinstance(aggregate, str):
            if aggregate not in _AGGREGATES:
                raise InvalidArgumentError(f"{aggregate} is no aggregate; there are {', '.join(_AGGREGATES)}")
            aggregate = {aggregate: {} if aggregate == "none" else {"output": 0}}
        spec["aggregate"] = dict(aggregate)
    return spec


def run(
    client: SahasraClient,
    *,
    ptx: str,
    parameters: Any,
    name: str | None = None,
    namespace: str | None = None,
    timeout_seconds: float = 600.0,
    keep: bool = False,
    **options: Any,
) -> pandas.DataFrame:
    """Runs a kernel once for each row of ``parameters`` (a DataFrame, or a dict of one-dimensional arrays) and waits for all.

    ``ptx`` is PTX text of at most 128 KiB. Its kernel's first parameter is where the results go unless ``args`` says otherwise (in the
    kernel's order: names of columns, or arguments as a ``BurstJob`` writes them), ``output=("f32", 1)`` what they are. ``aggregate`` is
    ``"argmin"``, ``"sum"``, … over output 0, or as a ``BurstJob`` writes it. The job is deleted afterwards unless ``keep``.

    Returns a DataFrame, a row for each chunk: its index, parameters and outputs; ``attrs["burst"]`` is the finished job, its status with
    the aggregate. Raises :class:`ExecutionError` when the burst fails, :class:`WaitTimeoutError` when it takes longer.
    """
    import pandas

    namespace = client.namespace if namespace is None else namespace
    gateway = client._gateway
    made = json.loads(gateway.create_burst(namespace, name, json.dumps(spec_of(ptx, parameters, **options))))
    name = str(made["metadata"]["name"])
    try:
        over = json.loads(gateway.burst_over(namespace, name, timeout_seconds))
        conditions = {condition["type"]: condition for condition in over.get("status", {}).get("conditions", [])}
        for kind in ("Failed", "Accepted"):
            condition = conditions.get(kind, {})
            if condition.get("status") == ("True" if kind == "Failed" else "False"):
                raise ExecutionError(f"{namespace}/{name}: {condition.get('reason')}: {condition.get('message')}")
        if conditions.get("Complete", {}).get("status") != "True":
            raise WaitTimeoutError(f"{namespace}/{name} was not complete after {timeout_seconds:g} s")
        frame = pandas.read_csv(io.StringIO(gateway.burst_results_csv(namespace, name)))
        frame.attrs["burst"] = over
        return frame
    finally:
        if not keep:
            gateway.delete_burst(namespace, name)
