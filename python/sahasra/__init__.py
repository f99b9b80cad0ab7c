"""Python client of Sahasra, which pools the GPU memory of a Kubernetes cluster.

A :class:`RemoteJaxSession` is a slice of one GPU: arrays put into the session stay on that GPU, jitted functions run there, and values are
transferred back only when they are read. :meth:`SahasraClient.burst` runs one kernel over many sets of parameters on the whole pool.
"""

from ._native import __version__
from .client import SahasraClient
from .errors import (
    AuthenticationError,
    CapacityError,
    CompileError,
    ConfigurationError,
    ConnectionLostError,
    ExecutionError,
    ForkedProcessError,
    IncompatibleProgramError,
    InvalidArgumentError,
    LeaseExpiredError,
    NotFoundError,
    OutOfDeviceMemoryError,
    PermissionDeniedError,
    ProtocolError,
    RemoteTransferWarning,
    SahasraError,
    SessionBusyError,
    SessionClosedError,
    TokenExposedWarning,
    WaitTimeoutError,
    WorkerLostError,
)
from .estimate import Estimate
from .progress import Progress
from .session import Execution, RemoteJaxSession, Traffic
from .tensor import RemoteTensor

__all__ = [
    "AuthenticationError",
    "CapacityError",
    "CompileError",
    "ConfigurationError",
    "ConnectionLostError",
    "Estimate",
    "Execution",
    "ExecutionError",
    "ForkedProcessError",
    "IncompatibleProgramError",
    "InvalidArgumentError",
    "LeaseExpiredError",
    "NotFoundError",
    "OutOfDeviceMemoryError",
    "PermissionDeniedError",
    "Progress",
    "ProtocolError",
    "RemoteJaxSession",
    "RemoteTensor",
    "RemoteTransferWarning",
    "SahasraClient",
    "SahasraError",
    "SessionBusyError",
    "SessionClosedError",
    "TokenExposedWarning",
    "Traffic",
    "WaitTimeoutError",
    "WorkerLostError",
    "__version__",
]
