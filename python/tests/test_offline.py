"""Errors of a session that are raised before anything is sent, and reports of its end. No pool is needed."""

import os

import jax.numpy as jnp
import numpy as np
import pytest

import sahasra
from sahasra.made import Made


class Native:
    """A connection on which nothing may be sent."""

    def welcome(self):
        return ("xla", "cpu", "1", "none", 1 << 30, "")


@pytest.fixture
def offline():
    return sahasra.RemoteJaxSession(Native(), "offline", "default", "here/cpu-0", False)


@pytest.mark.parametrize("inputs", [np.ones((2, 3), np.float32), jnp.ones(1), {"x": 1.0}, "xy", 1.0, None, (x for x in (1.0,))])
def test_sample_inputs_are_a_tuple_of_the_arguments(offline, inputs):
    for use in (offline.execute_jitted, offline.estimate_jitted):
        with pytest.raises(sahasra.InvalidArgumentError, match=r"sample_inputs must be a tuple of the arguments: write \(x,\)"):
            use(lambda x: x, inputs)


class Gateway:
    def delete_session(self, namespace, name):
        pass


class Ended(Native):
    """A connection whose session ends with this failure, or raises this error."""

    def __init__(self, failure=None, error=None):
        self.failure, self.error = failure, error

    def close(self, seconds):
        if self.error is not None:
            raise self.error
        return True, self.failure


def test_a_failure_that_was_never_raised_is_reported_at_the_end_of_the_program(capsys, monkeypatch):
    made = Made(Gateway(), "default", "offline", "1", os.getpid())
    made.give_back(Ended(sahasra.ExecutionError("step: it failed")), [])
    said = capsys.readouterr().err
    assert "session default/offline failed" in said and "ExecutionError: step: it failed" in said and "with block" in said
    # The failure that execute_jitted found earlier is reported instead of the later one.
    made.give_back(Ended(sahasra.ExecutionError("later")), [sahasra.CompileError("earlier")])
    said = capsys.readouterr().err
    assert "CompileError: earlier" in said and "later" not in said
    made.give_back(Ended(), [])
    made.give_back(Ended(error=sahasra.ConnectionLostError("gone")), [])
    made._replace(process=-1).give_back(Ended(sahasra.ExecutionError("of the parent")), [sahasra.ExecutionError("of the parent")])
    assert capsys.readouterr().err == ""
    monkeypatch.setattr("sys.stderr", None)
    made.give_back(Ended(sahasra.ExecutionError("nowhere to report")), [])
