"""Runs of one kernel over many sets of parameters on the whole pool."""

from __future__ import annotations

import difflib
import inspect
import io
import json
import math
import re
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .arguments import seconds_of, vram_of
from .burst_schema import MAX_ELEMENTS, MAX_RETRIES, MAX_SLICES, MAX_VALUES
from .caller import warn
from .errors import ExecutionError, InvalidArgumentError, SahasraError, WaitTimeoutError
from .kernel import Parameter, entries_of, extent, parameters_of, text_of, whole

if TYPE_CHECKING:
    import pandas

    from . import _native
    from .client import SahasraClient

#: Largest number of BurstJobs that one call creates: each is an object of some hundred kilobytes in the API server's store.
MAX_PARTS = 64

#: Seconds, besides the timeout of the call, after whose end a job of a program that was killed is deleted.
TTL_SECONDS = 3600.0
#: Longest time that a BurstJob can be kept after its end, in seconds.
MAX_TTL_SECONDS = 31_536_000.0

#: Types of the parameters and outputs of a BurstJob, by the name of the NumPy type.
_TYPES = {"float32": "f32", "float64": "f64", "int32": "s32", "int64": "s64", "uint8": "u8", "uint32": "u32", "uint64": "u64"}
#: Untyped PTX parameter types, which state only a size, and the unsigned type that a BurstJob uses for each.
_UNTYPED = {"b8": "u8", "b32": "u32", "b64": "u64"}
#: NumPy types, by the type of a parameter or output of a BurstJob.
_DTYPES = {kind: np.dtype(name) for name, kind in _TYPES.items()}
#: Names of the result columns that are not parameters: the chunk's index, and the outputs.
_RESERVED = re.compile(r"index|output\d+")


def spec_of(
    ptx: str | bytes,
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
    """Returns the ``spec`` of the ``BurstJob`` that :func:`run` creates.

    Raises :class:`InvalidArgumentError` for arguments that do not fit together.
    """
    ptx = text_of(ptx)
    entries = entries_of(ptx)
    if entry is None:
        if len(entries) != 1:
            raise InvalidArgumentError(f"the PTX has {len(entries)} kernels: name one as entry, one of {', '.join(entries)}")
        entry = entries[0]
    kernel = parameters_of(ptx, entry)
    columns = {str(name): column for name, column in _columns(parameters).items()}
    reserved = [name for name in columns if _RESERVED.fullmatch(name)]
    if reserved:
        raise InvalidArgumentError(f"parameters has a column {reserved[0]}, which is the name of a column of the results: rename it")
    lengths = {column.shape for column in columns.values()}
    if not columns or len(lengths) != 1 or len(next(iter(lengths))) != 1:
        shapes = ", ".join(f"{name} has the shape {column.shape}" for name, column in columns.items()) or "no columns"
        raise InvalidArgumentError(f"parameters are columns of one length: a DataFrame or a dict of one-dimensional arrays. Here, {shapes}")
    count = next(iter(lengths))[0]
    if count == 0:
        raise InvalidArgumentError("parameters has no rows: a burst has one chunk per row, at least 1")
    if count > MAX_VALUES:
        raise InvalidArgumentError(f"a burst takes at most {MAX_VALUES:,} rows, not {count:,}: write a BurstJob with formulas for more")
    is_list = isinstance(args, Sequence) and not isinstance(args, (str, bytes)) and all(isinstance(arg, (str, Mapping)) for arg in args)
    if args is not None and not is_list:
        raise InvalidArgumentError(
            "argument `args` must be a list of names of columns and of arguments in the form of a BurstJob, such as "
            f'[{{"output": {{"type": "f32", "count": 1}}}}, {", ".join(map(repr, columns))}], not {args!r}'
        )
    named = list(columns) if args is None else [arg for arg in args if isinstance(arg, str)]
    unknown = [name for name in named if name not in columns]
    if unknown:
        raise InvalidArgumentError(f"args name {', '.join(unknown)}, and parameters has no such column: it has {', '.join(columns)}")
    # By default the first parameter is the address of the results, and the others take the columns.
    order: list[Any] = [_output(output), *_bound(entry, kernel, list(columns))] if args is None else list(args)
    if len(order) != len(kernel):
        raise InvalidArgumentError(f"{_takes(entry, kernel)}, and args has {len(order)}: list one for each")
    types: dict[str, str] = {}
    arguments = []
    for argument, (_, kind) in zip(order, kernel):
        if isinstance(argument, str):
            types[argument] = _UNTYPED.get(kind, kind)
            if types[argument] not in _DTYPES:
                raise InvalidArgumentError(
                    f"column {argument}: {entry} takes it as {kind}, and a parameter of a BurstJob is one of {', '.join(_DTYPES)}: "
                    "declare the kernel's parameter as one of these and convert it there"
                )
            arguments.append({"parameter": argument})
        else:
            arguments.append(argument)
    declared = {}
    for name, column in columns.items():
        declared_type = types.get(name) or ("s64" if column.dtype.kind == "O" else _TYPES.get(column.dtype.name))
        declared[name] = {"type": declared_type, "list": _values(name, column, declared_type)}
    spec: dict[str, Any] = {
        "kernel": {
            "ptx": {"inline": ptx},
            "entry": entry,
            "grid": extent("grid", grid),
            "block": extent("block", block),
            "args": arguments,
        },
        "chunks": {"count": count, "parameters": declared},
        "slice": {"vram": vram_of(vram)},
        "retryPolicy": {"maxRetries": whole("max_retries", max_retries, 0, MAX_RETRIES)},
    }
    if slices is not None:
        spec["slices"] = {"min": 1, "max": whole("slices", slices, 1, MAX_SLICES)}
    if aggregate is not None:
        if isinstance(aggregate, str):
            aggregate = {aggregate: {}}
        elif not isinstance(aggregate, Mapping):
            raise InvalidArgumentError(
                "argument `aggregate` must be the name of an aggregate, such as \"argmin\", or a dict such as "
                f'{{"topK": {{"output": 0, "k": 10}}}}, not {aggregate!r}'
            )
        spec["aggregate"] = dict(aggregate)
    return spec


def _takes(entry: str, kernel: Sequence[Parameter]) -> str:
    """Returns a sentence that lists the parameters of the kernel."""
    declared = ", ".join(f"{name} ({kind})" for name, kind in kernel)
    return f"{entry} takes {len(kernel)} argument{'' if len(kernel) == 1 else 's'}{': ' if kernel else ''}{declared}"


def _bound(entry: str, kernel: Sequence[Parameter], columns: list[str]) -> list[str]:
    """Returns the columns in the order of the kernel's parameters after the first, which is the address of the results.

    They are bound by name if their names are those of the parameters, and by position if no column has the name of a parameter. Raises
    :class:`InvalidArgumentError` if only some do, and if there are more or fewer columns than parameters.
    """
    names = [name for name, _ in kernel[1:]]
    if len(names) == len(columns) and set(names) == set(columns):
        return names
    known = {name for name, _ in kernel}
    matching = [name for name in columns if name in known]
    others = [name for name in columns if name not in known]
    if not kernel:
        raise InvalidArgumentError(f"{_takes(entry, kernel)}, but the first parameter of a burst's kernel is the address of the results")
    if len(names) != len(columns):
        raise InvalidArgumentError(
            f"{_takes(entry, kernel)}. The first is the output, and the others take the columns, "
            f"but parameters has {len(columns)}: {', '.join(columns)}. "
            f"{_difference(names, columns) if matching else ''}Pass one column for each parameter, or say which argument is which as args"
        )
    if not matching:
        return columns
    match = f"the names of {', '.join(matching)} are names of parameters"
    first = f"{kernel[0].name} is the name of the first parameter, which is the output"
    why = f"{match}, and those of {', '.join(others)} are not" if others else first
    raise InvalidArgumentError(
        f"{_takes(entry, kernel)}. Of the columns, {why}: rename the columns to {', '.join(names)}, or say which argument is which as args. "
        f'args=[{{"output": {{"type": "f32", "count": 1}}}}, {", ".join(map(repr, columns))}] takes them in their order'
    )


def _difference(names: Sequence[str], columns: Sequence[str]) -> str:
    """Returns a sentence that names the parameters without a column, or the columns without a parameter."""
    missing = [name for name in names if name not in columns]
    spare = [name for name in columns if name not in names]
    lacking = f"Column not found: {', '.join(missing)}. " if missing else ""
    return lacking + (f"No parameter is called {', '.join(spare)}. " if spare else "")


def _columns(parameters: Any) -> dict[Any, np.ndarray[Any, Any]]:
    """Returns the columns as arrays.

    Raises :class:`InvalidArgumentError` for masked columns and for missing values.
    """
    if not hasattr(parameters, "keys") or not hasattr(parameters, "__getitem__"):
        raise InvalidArgumentError(
            f"argument `parameters` must be a DataFrame or a dict of one-dimensional arrays, "
            f'such as {{"rate": rates}}, not {type(parameters).__name__}'
        )
    columns = {}
    for name in parameters.keys():
        if isinstance(parameters[name], np.ma.MaskedArray):
            raise InvalidArgumentError(f"column {name} is masked, and a kernel cannot take missing values: use {name}.filled(...)")
        column = parameters[name]
        if getattr(column, "ndim", 1) > 1:
            raise InvalidArgumentError(
                f"column {name} has {column.ndim} dimensions, not one, or parameters has several columns of this name: rename or flatten it"
            )
        if hasattr(column, "isna") and column.isna().any():
            row = int(np.flatnonzero(column.isna())[0])
            raise InvalidArgumentError(f"column {name}, row {row}: a kernel cannot take missing values: fill or drop them")
        # NumPy would convert Python integers to floats if some of them need more than 63 bits and others do not.
        is_whole = isinstance(column, (list, tuple)) and all(isinstance(value, int) for value in column)
        try:
            array = np.asarray(column, dtype=object if is_whole else None)
        except (TypeError, ValueError) as error:
            raise InvalidArgumentError(f"column {name} must be a one-dimensional array of numbers: {error}") from None
        columns[name] = array if not is_whole or any(value.bit_length() > 63 for value in column) else array.astype(np.int64)
    return columns


def _output(output: Any) -> dict[str, Any]:
    if not isinstance(output, (tuple, list)) or len(output) != 2:
        raise InvalidArgumentError(f'argument `output` must be the type and the number of the results of one run, such as ("f32", 1), not {output!r}')
    kind, count = output
    if not isinstance(kind, str) or kind not in _DTYPES:
        raise InvalidArgumentError(f"output={output!r}: its type is one of {', '.join(_DTYPES)}")
    return {"output": {"type": kind, "count": whole("output's count", count, 1, MAX_ELEMENTS)}}


def _values(name: str, column: np.ndarray[Any, Any], kind: str | None) -> list[Any]:
    """Returns the column as a ``BurstJob`` lists it.

    Raises :class:`InvalidArgumentError`, which names the column, the row where one value is at fault, and the remedy.
    """

    def refused(row: Any, why: str) -> InvalidArgumentError:
        return InvalidArgumentError(f"column {name}, row {int(row)}: {why}")

    if column.dtype.kind == "O":
        # Object columns come from pandas if values are missing, and from Python integers of more than 64 bits.
        for row, value in enumerate(column):
            if not isinstance(value, (bool, int, float, np.number, np.bool_)):
                raise refused(row, f"{value!r} is not a number: fill or drop what is missing")
        if not all(isinstance(value, (bool, int, np.integer, np.bool_)) for value in column):
            column = column.astype(np.float64)
    elif kind is None or column.dtype.kind not in "biuf":
        raise InvalidArgumentError(f"column {name} of {column.dtype} cannot be a parameter of a kernel")
    dtype = _DTYPES[kind or "s64"]
    if dtype.kind == "f":
        with np.errstate(over="ignore"):
            wrong = np.flatnonzero(~np.isfinite(column.astype(np.float64).astype(dtype)))
        if len(wrong):
            value = float(column[wrong[0]])
            why = f"{value!r} does not fit {kind}" if np.isfinite(value) else f"a parameter is a finite number, and this is {value!r}"
            raise refused(wrong[0], f"{why}: fill or drop it, or compute it in the kernel")
        return [float(value) for value in column.tolist()]
    if column.dtype.kind == "f":
        raise InvalidArgumentError(f"column {name} of {column.dtype} is for a parameter of type {kind}, which takes whole numbers: use astype to say how")
    limits = np.iinfo(dtype)
    values = [int(value) for value in column.tolist()]
    for row, value in enumerate(values):
        if not limits.min <= value <= limits.max:
            raise refused(row, f"{value} does not fit {kind}: {limits.min} to {limits.max} do")
    return values


def _types_of(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the type of each result column as declared in the spec, whatever its values look like as text."""
    parameters = spec["chunks"]["parameters"]
    types: dict[str, Any] = {"index": np.dtype(np.int64)}
    types |= {name: _DTYPES[parameter["type"]] for name, parameter in parameters.items() if parameter["type"] in _DTYPES}
    outputs = [argument["output"] for argument in spec["kernel"]["args"] if isinstance(argument, Mapping) and "output" in argument]
    for place, output in enumerate(outputs):
        count, dtype = output.get("count", 1), _DTYPES.get(output.get("type"))
        if dtype is not None:
            types |= {f"output{place}" if count == 1 else f"output{place}[{element}]": dtype for element in range(count)}
    return types


def frame_of(text: str, spec: Mapping[str, Any]) -> pandas.DataFrame:
    """Parses the results of a burst with this ``spec`` from CSV text.

    The columns have the declared types and are in the order of the spec: the index, the parameters, the outputs. The values are exact.
    """
    import pandas

    types = _types_of(spec)
    # The precision with which pandas parses floating-point numbers depends on its version, and every digit counts here.
    read = {name: object if dtype.kind == "f" else dtype for name, dtype in types.items()}
    frame = pandas.read_csv(io.StringIO(text), dtype=read, na_filter=False, index_col=False)
    for name, dtype in types.items():
        if dtype.kind == "f" and name in frame.columns:
            frame[name] = frame[name].to_numpy(dtype=object).astype(np.float64).astype(dtype)
    # The gateway sorts the parameters by name.
    return frame[sorted(frame.columns, key=lambda name: list(types).index(name) if name in types else len(types))]


def run(
    client: SahasraClient,
    *,
    ptx: str | bytes,
    parameters: Any,
    name: str | None = None,
    namespace: str | None = None,
    timeout_seconds: float = 600.0,
    keep: bool = False,
    ttl_seconds: float | None = None,
    **options: Any,
) -> pandas.DataFrame:
    """Runs a kernel once for each row of ``parameters`` (a DataFrame, or a dict of one-dimensional arrays) and waits for all runs.

    ``ptx`` is PTX text, not a path, of at most 128 KiB. By default the kernel's first parameter is the address of the results, and the other
    parameters take the columns. If the columns have the names of these parameters, in any order, each parameter takes the column of its name. If no
    column has the name of a parameter (compilers write names such as ``score_param_1``), the parameters take the columns in order. Anything in
    between is rejected. ``args`` overrides this: it lists, in the order of the kernel's parameters, names of columns or arguments in the form of a
    ``BurstJob``. ``output=("f32", 1)`` is the type and the number of the results of one run. ``aggregate`` is ``"argmin"``, ``"sum"``, … over output
    0, or an aggregate in the form of a ``BurstJob``. ``grid``, ``block``, ``vram``, ``slices`` (the largest number of slices) and ``max_retries``
    set the fields of the job. The job is deleted afterwards unless ``keep`` is true; a ``RuntimeWarning`` names jobs that could not be deleted.

    ``ttl_seconds`` is the time after its end at which the cluster deletes a job, even if this program was killed. The default is an hour longer than
    ``timeout_seconds``, so that results are read before; with ``keep``, jobs have no such time by default.

    One ``BurstJob`` lists at most 4,096 rows. More rows, up to 262,144, are split into several jobs that run at the same time. These cannot have
    an ``aggregate``, which would cover only one of the jobs. If ``name`` is given, they are called ``name-0``, ``name-1``, …

    Returns a DataFrame with one row for each chunk: its ``index`` (the position of the row in ``parameters``), the columns of ``parameters`` in
    their order and the outputs, in the types that the kernel's parameters and ``output`` have. ``attrs["bursts"]`` lists the finished jobs;
    ``attrs["burst"]`` is the first of them, and ``attrs["burst"]["status"]["aggregate"]`` the aggregate.

    Raises :class:`InvalidArgumentError` for arguments that do not fit together, :class:`ExecutionError` when a job fails,
    :class:`WaitTimeoutError` when the jobs take longer than ``timeout_seconds``.
    """
    import pandas

    for option in options:
        if option not in _OPTIONS:
            near = difflib.get_close_matches(option, _OPTIONS, 1)
            hint = f"did you mean {near[0]}?" if near else f"it takes {', '.join(_OPTIONS)}"
            raise TypeError(f"burst() got an unexpected keyword argument {option!r}: {hint}")
    namespace = client.namespace if namespace is None else namespace
    gateway = client._gateway
    parts = _parts(parameters, options)
    specs = [spec_of(ptx, part, **options) for part in parts]
    timeout_seconds = seconds_of("timeout_seconds", timeout_seconds)
    if ttl_seconds is not None:
        ttl_seconds = seconds_of("ttl_seconds", ttl_seconds)
    elif not keep:
        ttl_seconds = timeout_seconds + TTL_SECONDS
    if ttl_seconds is not None:
        for spec in specs:
            spec["ttlSecondsAfterFinished"] = math.ceil(min(ttl_seconds, MAX_TTL_SECONDS))
    deadline = time.monotonic() + timeout_seconds
    names: list[str] = []
    frames, jobs = [], []
    try:
        for number, spec in enumerate(specs):
            own = name if name is None or len(specs) == 1 else f"{name}-{number}"
            gateway.create_burst(namespace, own, json.dumps(spec), names)
        for number, made_name in enumerate(names):
            over = json.loads(gateway.burst_over(namespace, made_name, max(0.0, deadline - time.monotonic())))
            _complete(over, f"{namespace}/{made_name}", timeout_seconds)
            frame = frame_of(gateway.burst_results_csv(namespace, made_name), specs[number])
            frame["index"] += number * MAX_VALUES
            frames.append(frame)
            jobs.append(over)
    except BaseException as error:
        left = "" if keep else _deleted(gateway, namespace, names)
        # Exceptions have no notes in Python 3.10.
        if left and hasattr(error, "add_note"):
            error.add_note(left)
        raise
    left = "" if keep else _deleted(gateway, namespace, names)
    if left:
        warn(left, RuntimeWarning)
    whole = frames[0] if len(frames) == 1 else pandas.concat(frames, ignore_index=True)
    whole.attrs["burst"], whole.attrs["bursts"] = jobs[0], jobs
    return whole


#: Keyword arguments of :func:`run`, and thus of :meth:`SahasraClient.burst`.
_OPTIONS = [
    parameter.name
    for function in (run, spec_of)
    for parameter in inspect.signature(function).parameters.values()
    if parameter.kind in (parameter.KEYWORD_ONLY, parameter.POSITIONAL_OR_KEYWORD) and parameter.name != "client"
]


def _deleted(gateway: _native.Gateway, namespace: str, names: Sequence[str]) -> str:
    """Deletes the jobs. If a ``KeyboardInterrupt`` arrives, starts over with all jobs before raising it.

    Returns a sentence that names the jobs that could not be deleted, or an empty string.
    """
    try:
        return _delete(gateway, namespace, names)
    except KeyboardInterrupt:
        _delete(gateway, namespace, names)
        raise


def _delete(gateway: _native.Gateway, namespace: str, names: Sequence[str]) -> str:
    remain: list[str] = []
    why = ""
    for name in names:
        try:
            gateway.delete_burst(namespace, name)
        except SahasraError as error:
            remain.append(name)
            why = why or str(error)
    return f"could not delete the BurstJobs {', '.join(remain)} in namespace {namespace}: {why}" if remain else ""


def _parts(parameters: Any, options: Mapping[str, Any]) -> list[Any]:
    """Splits the rows into parts that fit into one job each.

    Raises :class:`InvalidArgumentError` for more rows than one call takes, and for an ``aggregate`` over more than one job.
    """
    columns = _columns(parameters)
    lengths = {column.shape for column in columns.values()}
    if len(lengths) != 1 or len(next(iter(lengths))) != 1:
        # :func:`spec_of` reports the error.
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
    """Raises :class:`ExecutionError` if the job failed or was not accepted, :class:`WaitTimeoutError` if it is not complete."""
    conditions = {condition["type"]: condition for condition in over.get("status", {}).get("conditions", [])}
    for kind in ("Failed", "Accepted"):
        condition = conditions.get(kind, {})
        if condition.get("status") == ("True" if kind == "Failed" else "False"):
            raise ExecutionError(f"{name}: {condition.get('reason')}: {condition.get('message')}")
    if conditions.get("Complete", {}).get("status") != "True":
        # The last condition that is not met yet contains the reason why the job waits.
        said = [conditions[kind] for kind in ("Accepted", "Admitted", "Complete") if conditions.get(kind, {}).get("status") == "False"]
        why = f": {said[0].get('reason')}: {said[0].get('message')}" if said else ": its status says nothing yet: is an operator running?" if not conditions else ""
        raise WaitTimeoutError(f"{name} was not complete after {timeout_seconds:g} s{why}")
