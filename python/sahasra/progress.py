"""Progress reports of calls that block: compilations and long uploads."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from .errors import SahasraError

if TYPE_CHECKING:
    from . import _native

#: Seconds after which an operation is reported; shorter operations are not reported.
REPORT_DELAY = 0.5
#: Seconds between two reports of the same operation.
INTERVAL = 0.2
#: Smallest upload in bytes that is watched: smaller ones take less than the delay on any usable connection.
LONG_UPLOAD = 1 << 20


@dataclass(frozen=True)
class Progress:
    """Progress of an operation."""

    #: ``"compile"`` or ``"upload"``.
    kind: str
    #: Name of the function, or for uploads the number of tensors.
    what: str
    #: Device of the session, as ``worker/device``.
    device: str
    #: Seconds since the operation began.
    seconds: float
    #: Bytes sent so far, and total bytes; 0 for a compilation.
    done_bytes: int
    total_bytes: int
    #: Whether the operation has ended, successfully or not.
    finished: bool

    def __str__(self) -> str:
        if self.kind == "compile":
            return f"{self.what} {'was compiled' if self.finished else 'is being compiled'} on {self.device}: {self.seconds:.1f} s"
        return f"{self.what} to {self.device}: {self.done_bytes / 1e6:,.0f} of {self.total_bytes / 1e6:,.0f} MB, {self.seconds:.1f} s"


Report = Callable[[Progress], Any]


class _Line(Protocol):
    def write(self, text: str, /) -> Any: ...
    def flush(self) -> Any: ...


def line_on(stream: _Line) -> Report:
    """Returns a callable that shows reports on one line of the stream. Each report overwrites the previous one, in terminals and in notebooks."""
    longest = 0

    def show(progress: Progress) -> None:
        nonlocal longest
        text = f"sahasra: {progress}"
        stream.write("\r" + text.ljust(longest) + ("\n" if progress.finished else ""))
        stream.flush()
        longest = 0 if progress.finished else max(longest, len(text))

    return show


def reporter(wanted: bool | Report | None) -> Report | None:
    """Returns the callable that receives reports, or None for no reports.

    ``wanted`` is that callable; True for a line on stderr; False for None; None for a line in a terminal or a notebook, otherwise None.
    """
    if callable(wanted):
        return wanted
    if wanted is None:
        wanted = sys.stderr.isatty() or "ipykernel" in sys.modules
    return line_on(sys.stderr) if wanted else None


@dataclass
class _Thing:
    """The operation that is being watched."""

    kind: str
    what: str
    #: Bytes sent to the session before the operation began.
    before: int
    uploads: int = 0
    total_bytes: int = 0

    def progress(self, device: str, seconds: float, sent: int, finished: bool) -> Progress:
        if self.kind == "compile":
            return Progress(self.kind, self.what, device, seconds, 0, 0, finished)
        what = f"upload of {self.uploads} tensor{'' if self.uploads == 1 else 's'}"
        done = self.total_bytes if finished else min(self.total_bytes, sent - self.before)
        return Progress(self.kind, what, device, seconds, done, self.total_bytes, finished)


class Watch:
    """Reports one operation of a session at a time, from a thread that runs as long as the operation."""

    def __init__(self, native: _native.Session, device: str, report: Report | None) -> None:
        self._native = native
        self._device = device
        self._report = report
        self._lock = threading.Lock()
        self._thing: _Thing | None = None
        #: Number of calls inside `during` now, and number of calls that ever entered it.
        self._inside = 0
        self._entered = 0

    @contextlib.contextmanager
    def during(self, kind: str, what: str, total_bytes: int = 0) -> Iterator[None]:
        """Context of a call that puts an operation into the queue. The operation is watched until the session has accepted it."""
        if self._report is None or (kind == "upload" and total_bytes < LONG_UPLOAD):
            yield
            return
        with self._lock:
            thing, begins = self._thing, self._thing is None
            if thing is None:
                thing = self._thing = _Thing(kind, what, self._native.uploaded())
            if kind == "compile":
                # If a program is compiled behind an upload, the compilation, which takes longer, names both.
                thing.kind, thing.what = kind, what
            else:
                thing.uploads += 1
                thing.total_bytes += total_bytes
            self._inside += 1
            self._entered += 1
        if begins:
            threading.Thread(target=self._tell, args=(thing, self._report), name="sahasra-progress", daemon=True).start()
        try:
            yield
        finally:
            with self._lock:
                self._inside -= 1

    def _taken(self, over: threading.Event) -> None:
        """Waits until the session has accepted every operation: it accepts operations in order, so an answer to the last one covers all."""
        while True:
            with self._lock:
                entered, inside = self._entered, self._inside
            if inside:
                # The caller still waits for space in the queue or for an answer; a request sent now would be answered too early.
                time.sleep(INTERVAL / 4)
                continue
            with contextlib.suppress(SahasraError):
                self._native.load()
            with self._lock:
                if entered == self._entered:
                    self._thing = None
                    break
        over.set()

    def _tell(self, thing: _Thing, report: Report) -> None:
        began = time.monotonic()
        over = threading.Event()
        threading.Thread(target=self._taken, args=(over,), name="sahasra-progress-end", daemon=True).start()
        if over.wait(REPORT_DELAY):
            return
        finished = False
        while not finished:
            finished = over.wait(INTERVAL)
            with self._lock:
                progress = thing.progress(self._device, time.monotonic() - began, self._native.uploaded(), finished)
            report(progress)
