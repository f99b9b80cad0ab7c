"""What can go wrong, by cause. The message names the operation and, where there is one, the remedy."""


class SahasraError(Exception):
    """Anything that Sahasra reports."""


class ConfigurationError(SahasraError):
    """URL, certificate or token cannot be used as they are."""


class AuthenticationError(SahasraError):
    """No token was found, or the token is unknown or expired."""


class PermissionDeniedError(SahasraError):
    """The token's owner may not do that."""


class ForkedProcessError(SahasraError, RuntimeError):
    """This process was forked from one that uses sahasra: it has the memory, but neither the connections nor the sessions."""


class NotFoundError(SahasraError):
    """There is no such object."""


class CapacityError(SahasraError):
    """No device has room; the message says why for each device."""


class WaitTimeoutError(SahasraError, TimeoutError):
    """The condition that was waited for was not met within the timeout."""


class ConnectionLostError(SahasraError, ConnectionError):
    """The gateway or the worker cannot be reached, or a session could not be resumed within its grace."""


class WorkerLostError(ConnectionLostError):
    """The worker that held the session is gone, with every tensor there."""

    #: The session as ``namespace/name``, where it was, and the operation that did not end.
    session: str = ""
    worker: str = ""
    operation: str = ""


class SessionClosedError(SahasraError):
    """The session was closed or deleted."""


class SessionBusyError(SahasraError):
    """Another client is connected to the session."""


class LeaseExpiredError(SessionClosedError):
    """The session's time is over, or it was idle for too long."""


class InvalidArgumentError(SahasraError, ValueError):
    """Arguments do not fit: names, types, shapes, their number."""


class OutOfDeviceMemoryError(SahasraError, MemoryError):
    """It would take more device memory than the session may use. What was there is there still, but for what the call donated."""


class IncompatibleProgramError(SahasraError):
    """The session's engine or platform cannot run the program. Nothing ran."""


class CompileError(SahasraError):
    """The compiler refused the program."""


class ExecutionError(SahasraError):
    """A program failed while it ran."""


class ProtocolError(SahasraError):
    """The two sides do not understand each other."""


class RemoteTransferWarning(UserWarning):
    """A function of this process brings a remote tensor's value here, where one that runs in the session would not."""
