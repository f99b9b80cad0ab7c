"""The ``GpuSession`` object behind a session, and its deletion at the end."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from typing import NamedTuple

from . import _native
from .errors import NotFoundError, SahasraError

#: Seconds for which closing waits. Work that still runs afterwards ends when the ``GpuSession`` object is deleted.
CLOSE_SECONDS = 1.0


class Made(NamedTuple):
    """A ``GpuSession`` object that this process created and deletes at the end of the session."""

    gateway: _native.Gateway
    namespace: str
    name: str
    #: Distinguishes the object from a later one of the same name.
    uid: str
    #: Id of the process that created the object. A forked process has a copy of the session's memory, but does not own the session.
    process: int

    def end(self, native: _native.Session) -> None:
        """Frees the session's memory and deletes the object, which ends operations that still run. Raises as :meth:`RemoteJaxSession.close` does.

        Does nothing in a forked process.
        """
        failure = self._release(native)
        if failure is not None:
            raise failure

    def _release(self, native: _native.Session) -> Exception | None:
        """Ends the session. Returns the first failure of an operation that was not raised before."""
        if os.getpid() != self.process:
            return None
        try:
            was_there, failure = native.close(CLOSE_SECONDS)
        except BaseException:
            # A signal interrupted the wait. Deleting the object ends the operations that are still running.
            with contextlib.suppress(SahasraError):
                self.gateway.delete_session(self.namespace, self.name)
            raise
        # If the session had ended before, another object may have the name by now.
        if was_there or self._is_there():
            self.gateway.delete_session(self.namespace, self.name)
        return failure

    def _is_there(self) -> bool:
        """Returns whether the object of this name is still this one, and not a later one of the same name."""
        try:
            return bool(json.loads(self.gateway.session(self.namespace, self.name))["metadata"]["uid"] == self.uid)
        except NotFoundError:
            return False

    def give_back(self, native: _native.Session, earlier: list[SahasraError]) -> None:
        """Ends the session like :meth:`end`, but suppresses errors, for finalizers. After an error the session ends by its own timeouts.

        A failure of an operation that was not raised before, the first of ``earlier`` or else one that is found now, is reported on stderr, because a
        finalizer cannot raise it.
        """
        failure: Exception | None = None
        with contextlib.suppress(SahasraError):
            failure = self._release(native)
        failure = earlier[0] if earlier else failure
        # A forked process has a copy of the failure, which the parent reports.
        if failure is not None and os.getpid() == self.process:
            # stderr may be closed or None by now.
            with contextlib.suppress(OSError, ValueError, AttributeError):
                sys.stderr.write(
                    f"sahasra: an operation of session {self.namespace}/{self.name} failed, and nothing raised it: {type(failure).__name__}: {failure}\n"
                    "sahasra: use the session in a with block, or close() it, to have such failures raised\n"
                )
                sys.stderr.flush()
