"""Progress reports of long compilations and uploads."""

import io
import threading

import pytest
from conftest import eventually

import sahasra
from sahasra import progress
from sahasra.progress import Progress, Watch, line_on, reporter


class Slow:
    """A session that accepts an operation when the test tells it to."""

    def __init__(self):
        self.taken = threading.Event()
        self.sent = 100

    def uploaded(self):
        return self.sent

    def load(self):
        assert self.taken.wait(60)


class Reports(list):
    """Collects reports. Each report adds 1 MB to the bytes sent, the third completes the operation, and the last one sets `over`."""

    def __init__(self, native):
        super().__init__()
        self.native = native
        self.over = threading.Event()

    def __call__(self, report):
        self.append(report)
        self.native.sent += 1_000_000
        if len(self) == 3:
            self.native.taken.set()
        if report.finished:
            self.over.set()


@pytest.fixture
def slow(monkeypatch):
    monkeypatch.setattr(progress, "REPORT_DELAY", 0.01)
    monkeypatch.setattr(progress, "INTERVAL", 0.01)
    return Slow()


def test_a_compilation_is_reported_until_it_has_ended(slow):
    reports = Reports(slow)
    with Watch(slow, "node/gpu-0", reports).during("compile", "step"):
        pass
    assert reports.over.wait(60)
    assert len(reports) >= 3
    assert [report.finished for report in reports] == [False] * (len(reports) - 1) + [True]
    assert {(report.kind, report.what, report.device, report.total_bytes) for report in reports} == {("compile", "step", "node/gpu-0", 0)}
    assert "step is being compiled on node/gpu-0" in str(reports[0])
    assert "step was compiled" in str(reports[-1])


def test_uploads_are_counted_together(slow):
    reports = Reports(slow)
    watch = Watch(slow, "node/gpu-0", reports)
    # The second upload begins while the first waits for space in the queue, so neither can have ended before.
    with watch.during("upload", "", 4_000_000), watch.during("upload", "", 4_000_000):
        pass
    assert reports.over.wait(60)
    assert [report.done_bytes for report in reports[:3]] == [0, 1_000_000, 2_000_000]
    assert (reports[-1].done_bytes, reports[-1].total_bytes, reports[-1].what) == (8_000_000, 8_000_000, "upload of 2 tensors")
    # The next upload is counted from its own beginning.
    slow.taken.clear()
    again = Reports(slow)
    watch._report = again
    with watch.during("upload", "", 4_000_000):
        pass
    assert again.over.wait(60)
    assert (again[0].done_bytes, again[0].total_bytes, again[0].what) == (0, 4_000_000, "upload of 1 tensor")


def test_short_or_small_operations_are_not_reported(slow, monkeypatch):
    monkeypatch.setattr(progress, "REPORT_DELAY", 60)
    reports = Reports(slow)
    watch = Watch(slow, "node/gpu-0", reports)
    with watch.during("upload", "", 100):
        assert watch._thing is None
    slow.taken.set()
    with watch.during("compile", "step"):
        pass
    for thread in threading.enumerate():
        if thread.name.startswith("sahasra-progress"):
            thread.join(60)
    assert reports == []


def test_nothing_is_reported_without_a_terminal(capsys):
    assert reporter(None) is None
    assert reporter(False) is None
    assert reporter(print) is print
    reporter(True)(Progress("compile", "step", "node/gpu-0", 1.25, 0, 0, True))
    assert "step was compiled on node/gpu-0: 1.2 s" in capsys.readouterr().err


def test_a_line_overwrites_the_previous_one():
    stream = io.StringIO()
    show = line_on(stream)
    show(Progress("upload", "upload of 10 tensors", "a/b", 1, 0, 2_000_000_000, False))
    show(Progress("compile", "f", "a/b", 2, 0, 0, True))
    first, second = stream.getvalue().split("\r")[1:]
    assert "0 of 2,000 MB" in first and second.endswith("\n") and len(second) - 1 == len(first)


def test_a_session_reports_compilations(pool, client, monkeypatch):
    monkeypatch.setattr(progress, "REPORT_DELAY", 0.0)
    told = []
    over = threading.Event()

    def report(progress):
        told.append(progress)
        if progress.finished:
            over.set()

    with sahasra.RemoteJaxSession.create(client, gpu_class=pool.gpu_class, vram="256Mi", progress=report) as session:

        def compiled_and_told_of():
            assert float(session.jit(lambda x: x + 1)(1.0)) == 2.0
            return over.wait(0.5)

        # A compilation that ends before the first check is not reported.
        eventually(compiled_and_told_of)
        assert (told[-1].kind, told[-1].device, told[-1].finished) == ("compile", session.device, True)
