"""Handling of jobs by `client.burst`, with a fake gateway."""

import json
import sys

import numpy as np
import pytest

import sahasra
from sahasra.burst import MAX_VALUES, run

pytest.importorskip("pandas")

SQUARE = ".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry square(.param .u64 o, .param .f32 a){ ret; }"
ROWS = 3 * MAX_VALUES


class Gateway:
    """A fake gateway that completes every job except `fails`, and rejects the deletion of the jobs in `kept`."""

    def __init__(self, kept=(), fails=None):
        self.kept, self.fails = kept, fails
        self.specs = {}
        self.deleted = []

    def create_burst(self, namespace, name, text, created):
        name = name or f"made-{len(self.specs)}"
        self.specs[name] = json.loads(text)
        created.append(name)

    def burst_over(self, namespace, name, seconds):
        kind = "Failed" if name == self.fails else "Complete"
        return json.dumps({"status": {"conditions": [{"type": kind, "status": "True", "reason": "ChunksFailed", "message": "3 chunks failed"}]}})

    def burst_results_csv(self, namespace, name):
        values = self.specs[name]["chunks"]["parameters"]["a"]["list"]
        return "\n".join(["index,a,output0", *(f"{place},{value},{value * value}" for place, value in enumerate(values))]) + "\n"

    def delete_burst(self, namespace, name):
        self.deleted.append(name)
        if name in self.kept:
            raise sahasra.ConnectionLostError(f"{name} is out of reach")


class Client:
    namespace = "default"

    def __init__(self, gateway):
        self._gateway = gateway


PARAMETERS = {"a": (np.arange(ROWS) % 100).astype(np.float32)}


def test_results_are_returned_even_if_a_job_cannot_be_deleted():
    gateway = Gateway(kept=("many-0", "many-1"))
    with pytest.warns(RuntimeWarning, match="many-0, many-1 in namespace default: many-0 is out of reach") as warned:
        frame = run(Client(gateway), ptx=SQUARE, parameters=PARAMETERS, name="many")
    assert warned[0].filename == __file__
    assert gateway.deleted == ["many-0", "many-1", "many-2"]
    assert frame["index"].tolist() == list(range(ROWS))
    np.testing.assert_array_equal(frame["output0"], PARAMETERS["a"] ** 2)


def test_64_jobs_of_4096_rows_are_run_and_one_more_row_is_rejected():
    gateway = Gateway()
    rows = 262_144
    frame = run(Client(gateway), ptx=SQUARE, parameters={"a": (np.arange(rows) % 100).astype(np.float32)})
    assert frame["index"].tolist() == list(range(rows))
    assert len(gateway.specs) == 64 and {spec["chunks"]["count"] for spec in gateway.specs.values()} == {4096}
    with pytest.raises(sahasra.InvalidArgumentError, match="262,145 rows are more than the 262,144 of one call"):
        run(Client(gateway), ptx=SQUARE, parameters={"a": np.zeros(rows + 1, np.float32)})
    assert len(gateway.specs) == 64


def test_a_failure_is_raised_even_if_a_job_cannot_be_deleted():
    gateway = Gateway(kept=("many-0",), fails="many-1")
    with pytest.raises(sahasra.ExecutionError, match="default/many-1: ChunksFailed") as raised:
        run(Client(gateway), ptx=SQUARE, parameters=PARAMETERS, name="many")
    assert gateway.deleted == ["many-0", "many-1", "many-2"]
    if sys.version_info >= (3, 11):
        assert any("many-0" in note and "out of reach" in note for note in raised.value.__notes__)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, 4200),
        ({"timeout_seconds": 0.5}, 3601),
        ({"ttl_seconds": 60}, 60),
        ({"timeout_seconds": float("inf")}, 31_536_000),
        ({"keep": True}, None),
        ({"keep": True, "ttl_seconds": 60}, 60),
    ],
)
def test_jobs_of_a_program_that_is_killed_are_deleted_by_the_cluster(options, expected):
    gateway = Gateway()
    run(Client(gateway), ptx=SQUARE, parameters=PARAMETERS, name="many", **options)
    assert [spec.get("ttlSecondsAfterFinished") for spec in gateway.specs.values()] == [expected] * 3
    with pytest.raises(sahasra.InvalidArgumentError, match="argument `ttl_seconds` must be a number of seconds from 0"):
        run(Client(gateway), ptx=SQUARE, parameters=PARAMETERS, ttl_seconds="soon")


def test_jobs_are_kept_if_requested():
    gateway = Gateway()
    run(Client(gateway), ptx=SQUARE, parameters=PARAMETERS, name="many", keep=True)
    assert gateway.deleted == []
