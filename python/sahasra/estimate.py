"""Resources that a function would need in a session."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .errors import CompileError, IncompatibleProgramError, OutOfDeviceMemoryError
from .tensor import RemoteTensor

if TYPE_CHECKING:
    from .export import Exported
    from .session import RemoteJaxSession


@dataclass(frozen=True)
class Estimate:
    """Resources that a function would need in a session. The function was not executed."""

    #: Whether the function fits.
    feasible: bool
    #: Reason why it does not fit; empty if it does.
    reason: str
    #: Bytes of device memory: arguments, results, results that reuse the memory of arguments, temporary buffers, code.
    argument_bytes: int
    output_bytes: int
    aliased_bytes: int
    temporary_bytes: int
    code_bytes: int
    #: Floating-point operations of one execution, as counted by the plugin or else by JAX; None if neither counts them.
    flops: float | None
    #: Device memory limit of the session, and device memory that its tensors use now, in bytes.
    limit_bytes: int
    used_bytes: int
    #: Duration of the compilation in milliseconds, and whether the program had been compiled before.
    compile_milliseconds: int
    cached: bool

    @property
    def total_bytes(self) -> int:
        """Bytes of device memory that one execution takes, including its arguments, without its code."""
        return self.argument_bytes + self.output_bytes - self.aliased_bytes + self.temporary_bytes


def estimated(session: RemoteJaxSession, leaves: list[Any], exported: Exported) -> Estimate:
    """Compiles an exported function in the session and returns what it needs there. ``leaves`` are its arguments."""
    try:
        with session._watch.during("compile", exported.name):
            _, costs = session._native.compile_and_ask(exported.name, "stablehlo", exported.code)
    except (IncompatibleProgramError, CompileError, OutOfDeviceMemoryError) as error:
        _, used, limit, _, _ = session._native.load()
        return Estimate(False, str(error), 0, 0, 0, 0, 0, exported.flops, limit, used, 0, False)
    cached, milliseconds, _, arguments, outputs, aliased, temporary, code, flops, limit, used = costs
    needed = arguments + outputs - aliased + temporary
    here = {id(leaf): leaf.nbytes for leaf in (leaves[place] for place in exported.kept) if isinstance(leaf, RemoteTensor) and leaf._session is session}
    more = needed - sum(here.values())
    reason = ""
    if needed > limit:
        reason = f"an execution takes {needed:,} bytes, and the session may use {limit:,}: ask for more vram"
    elif used + more > limit:
        reason = (
            f"an execution takes {more:,} bytes more, and {used:,} of the {limit:,} that the session may use are taken: "
            "delete tensors, donate arguments, or ask for more vram"
        )
    return Estimate(
        not reason, reason, arguments, outputs, aliased, temporary, code, exported.flops if flops is None else flops, limit, used, milliseconds, cached
    )
