"""One kernel over many sets of parameters on the whole pool."""

from __future__ import annotations

import io
import json
import re
import time
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
#: BurstJobs of one call: each is an object of some hundred kilobytes in the API server's store.
MAX_PARTS = 64

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
    ``"argmin"``, ``"sum"``, … over output 0, or as a ``BurstJob`` writes it. ``grid``, ``block``, ``vram``, ``slices`` (at the most) and
    ``max_retries`` are the job's. It is deleted afterwards unless ``keep``.

    One ``BurstJob`` lists 4,096 rows at the most: more, up to 262,144, go as several that run at the same time, without ``aggregate``,
    which would be over one of them; their names are ``name-0``, ``name-1``, … where ``name`` is given.

    Returns a DataFrame, a row for each chunk: its ``index`` (the row's place), parameters and outputs. ``attrs["bursts"]`` are the finished
    jobs, ``attrs["burst"]`` the first, its status with the aggregate. Raises :class:`InvalidArgumentError` for what does not fit together,
    :class:`ExecutionError` when a job fails, :class:`WaitTimeoutError` when it takes longer.
    """
    import pandas

    namespace = client.namespace if namespace is None else namespace
    gateway = client._gateway
    parts = _parts(parameters, options)
    specs = [spec_of(ptx, part, **options) for part in parts]
    deadline = time.monotonic() + timeout_seconds
    names: list[str] = []
    frames, jobs = [], []
    try:
        for number, spec in enumerate(specs):
            own = name if name is None or len(specs) == 1 else f"{name}-{number}"
            made = json.loads(gateway.create_burst(namespace, own, json.dumps(spec)))
            names.append(str(made["metadata"]["name"]))
        for number, made_name in enumerate(names):
            over = json.loads(gateway.burst_over(namespace, made_name, max(0.0, deadline - time.monotonic())))
            _complete(over, f"{namespace}/{made_name}", timeout_seconds)
            frame = pandas.read_csv(io.StringIO(gateway.burst_results_csv(namespace, made_name)))
            frame["index"] += number * MAX_VALUES
            frames.append(frame)
            jobs.append(over)
    finally:
        if not keep:
            for made_name in names:
                gateway.delete_burst(namespace, made_name)
    whole = frames[0] if len(frames) == 1 else pandas.concat(frames, ignore_index=True)
    whole.attrs["burst"], whole.attrs["bursts"] = jobs[0], jobs
    return whole


def _parts(parameters: Any, options: Mapping[str, Any]) -> list[Any]:
    """The rows in parts that one job can list."""
    columns = {name: np.asarray(parameters[name]) for name in (parameters.keys() if hasattr(parameters, "keys") else parameters)}
    lengths = {column.shape for column in columns.values()}
    if len(lengths) != 1 or len(next(iter(lengths))) != 1:
        # What is wrong with it is said where it is looked at.
        return [parameters]
    count = next(iter(lengths))[0]
    if count <= MAX_VALUES:
        return [parameters]
    if count > MAX_VALUES * MAX_PARTS:
        raise InvalidArgumentError(f"{count:,} rows are more than the {MAX_VALUES * MAX_PARTS:,} of one call: write a BurstJob with formulas")
    if options.get("aggregate") is not None:
        raise InvalidArgumentError(
            f"an aggregate is over one BurstJob, of {MAX_VALUES:,} rows at the most, and there are {count:,}: leave it out and ask the frame, "
            "or write a BurstJob with formulas"
        )
    return [{name: column[start : start + MAX_VALUES] for name, column in columns.items()} for start in range(0, count, MAX_VALUES)]


def _complete(over: Mapping[str, Any], name: str, timeout_seconds: float) -> None:
    """Raises what became of a job that is not complete."""
    conditions = {condition["type"]: condition for condition in over.get("status", {}).get("conditions", [])}
    for kind in ("Failed", "Accepted"):
        condition = conditions.get(kind, {})
        if condition.get("status") == ("True" if kind == "Failed" else "False"):
            raise ExecutionError(f"{name}: {condition.get('reason')}: {condition.get('message')}")
    if conditions.get("Complete", {}).get("status") != "True":
        raise WaitTimeoutError(f"{name} was not complete after {timeout_seconds:g} s")
