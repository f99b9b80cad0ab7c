"""Exceptions of the package, one class for each cause. The message names the operation and, if there is one, the remedy."""

#: Remedies of a request without a token.
_NO_TOKEN = (
    "No token was found: pass token=, set SAHASRA_TOKEN_FILE, or set KUBECONFIG. "
    "`sahasra up --kubeconfig FILE` writes the token beside FILE, as token-PORT: set SAHASRA_TOKEN_FILE to it, or KUBECONFIG to FILE"
)


class SahasraError(Exception):
    """Base class of all exceptions of the package."""


class ConfigurationError(SahasraError):
    """The URL, the certificate or the token cannot be used."""


class AuthenticationError(SahasraError):
    """No token was found, or the token is unknown or expired."""

    def __str__(self) -> str:
        text = super().__str__()
        # The server's message cannot name the places where this process looks for a token, so they are appended here.
        return f"{text}. {_NO_TOKEN}" if "no token:" in text else text


class PermissionDeniedError(SahasraError):
    """The owner of the token lacks the permission for the request."""


class ForkedProcessError(SahasraError, RuntimeError):
    """This process was forked from one that uses sahasra: it has a copy of the memory, but neither the connections nor the sessions."""


class NotFoundError(SahasraError):
    """The object does not exist."""


class CapacityError(SahasraError):
    """No device has enough free memory; the message gives the reason for each device."""


class WaitTimeoutError(SahasraError, TimeoutError):
    """The condition that was waited for was not met within the timeout."""


class ConnectionLostError(SahasraError, ConnectionError):
    """The gateway or the worker cannot be reached, or a session could not be resumed within its grace period."""


class WorkerLostError(ConnectionLostError):
    """The worker that held the session is gone, with every tensor of the session."""

    #: The session as ``namespace/name``, the worker on which it ran, and the operation that did not finish.
    session: str = ""
    worker: str = ""
    operation: str = ""


class SessionClosedError(SahasraError):
    """The session was closed or deleted."""


class SessionBusyError(SahasraError):
    """Another client is connected to the session."""


class LeaseExpiredError(SessionClosedError):
    """The session reached its time limit, or was idle for too long."""


class InvalidArgumentError(SahasraError, ValueError):
    """Names, types, shapes or the number of the arguments do not fit, or the API server rejected the object made of them."""


class OutOfDeviceMemoryError(SahasraError, MemoryError):
    """The operation would exceed the session's device memory limit. Existing tensors are kept, except those that the call donated."""


class IncompatibleProgramError(SahasraError):
    """The session's engine or platform cannot run the program. Nothing was executed."""


class CompileError(SahasraError):
    """The compiler rejected the program."""


class ExecutionError(SahasraError):
    """A program failed during execution, or a ``BurstJob`` failed or was not accepted."""


class ProtocolError(SahasraError):
    """Client and server do not support each other's protocol, or one of them sent a malformed message."""


class TokenExposedWarning(UserWarning):
    """A token is sent unencrypted to another machine."""


class RemoteTransferWarning(UserWarning):
    """A local function transfers the value of a remote tensor to this process, although an equivalent function could run in the session."""
