"""Progress of calls that block: compilations and long uploads."""

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

#: Seconds after which an operation is reported; one that takes less is not.
REPORT_DELAY = 0.5
#: Seconds between two reports of the same thing.
INTERVAL = 0.2
#: Uploads below so many bytes are never watched: they take less than the delay on any connection that one would work over.
LONG_UPLOAD = 1 << 20


@dataclass(frozen=True)
class Progress:
    """How far something is."""

    #: ``"compile"`` or ``"upload"``.
    kind: str
    #: What: the function's name; for uploads how many tensors.
    what: str
    #: Where: ``worker/device``.
    device: str
    #: Seconds since it began.
    seconds: float
    #: Bytes that are on their way or there, and bytes in all; 0 for a compilation.
    done_bytes: int
    total_bytes: int
    #: It has ended, well or not.
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
    """Reports on one line of the stream, overwritten with each report, as terminals and notebooks show it."""
    longest = 0

    def show(progress: Progress) -> None:
        nonlocal longest
        text = f"sahasra: {progress}"
        stream.write("\r" + text.ljust(longest) + ("\n" if progress.finished else ""))
        stream.flush()
        longest = 0 if progress.finished else max(longest, len(text))

    return show


def reporter(wanted: bool | Report | None) -> Report | None:
    """The callable itself; a line on stderr for True; None for False; for None, a line in a terminal or a notebook, otherwise None."""
    if callable(wanted):
        return wanted
    if wanted is None:
        wanted = sys.stderr.isatty() or "ipykernel" in sys.modules
    return line_on(sys.stderr) if wanted else None


@dataclass
class _Thing:
    """What is watched."""

    kind: str
    what: str
    #: Bytes that had gone there when it began.
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
    """Reports one operation of a session at a time, from a thread that lives as long as the operation."""

    def __init__(self, native: _native.Session, device: str, report: Report | None) -> None:
        self._native = native
        self._device = device
        self._report = report
        self._lock = threading.Lock()
        self._thing: _Thing | None = None
        #: Calls inside `during`, and how many there ever were.
        self._inside = 0
        self._entered = 0

    @contextlib.contextmanager
    def during(self, kind: str, what: str, total_bytes: int = 0) -> Iterator[None]:
        """Around the call that puts an operation into the queue: it is watched until the session has taken it."""
        if self._report is None or (kind == "upload" and total_bytes < LONG_UPLOAD):
            yield
            return
        with self._lock:
            thing, begins = self._thing, self._thing is None
            if thing is None:
                thing = self._thing = _Thing(kind, what, self._native.uploaded())
            if kind == "compile":
                # What takes longest names both: a program that is compiled behind an upload.
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
        """Waits until the session has taken everything: it takes operations in their order, and answers the last one."""
        while True:
            with self._lock:
                entered, inside = self._entered, self._inside
            if inside:
                # The caller waits for room in the queue, or for an answer; ours would come too early.
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
