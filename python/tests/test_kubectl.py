"""Output of kubectl for sessions, and deletion with kubectl: the same on every control plane of a pool."""

import re
import threading

import numpy as np
import pytest
from conftest import eventually
from jax import lax

import sahasra

#: A session during a step. Worker and age depend on the pool.
COLUMNS = """\
$ kubectl get gpusessions
NAME   CLASS   WORKER   GPU   VRAM   STATE   ACTIVE   TENSORS   BYTES   AGE
afternoon   CLASS   WORKER   cpu-0   256Mi   Ready   1   2   8192   AGE
"""


def endless(x):
    """A function that runs for hours, for a test that ends it."""
    return lax.while_loop(lambda s: s[0] < 2**31 - 1, lambda s: (s[0] + 1, s[1] * 0.5 + 1.0), (0, x))[1]


def shown(pool, worker):
    """Returns the table with its columns separated by three blanks."""
    head, *rows = pool.kubectl("get", "gpusessions", "afternoon").splitlines()
    columns = re.split(r"\s{2,}", head.strip())
    printed = "$ kubectl get gpusessions\n" + "   ".join(columns) + "\n"
    for row in rows:
        cells = dict(zip(columns, re.split(r"\s{2,}", row.strip())))
        assert re.fullmatch(r"\d+[smh]\d*m?\d*s?", cells["AGE"])
        assert cells["WORKER"] == worker
        assert cells["CLASS"] == pool.gpu_class
        printed += "   ".join(column if column in ("WORKER", "AGE", "CLASS") else cells[column] for column in columns) + "\n"
    return printed


@pytest.mark.parametrize("direct", [False, True], ids=["gateway", "direct"])
def test_kubectl_delete_in_the_middle_of_a_step_ends_the_call_and_frees_everything(pool, client, direct):
    pool.kubectl("get", "gpusessions")
    before = pool.executors()
    session = sahasra.RemoteJaxSession.create(client, gpu_class=pool.gpu_class, vram="256Mi", name="afternoon", **pool.way(direct))
    x = session.put(np.ones(1024, np.float32))
    y = session.jit(endless)(x)

    def object_():
        return next(made for made in client.sessions() if made["metadata"]["name"] == "afternoon")

    def in_the_middle():
        status = object_()["status"]
        # The result's tensor exists from the beginning of the step.
        return (status.get("activeExecutions"), status.get("tensorCount")) == (1, 2) and status

    status = eventually(in_the_middle)
    assert shown(pool, status["worker"]) == COLUMNS
    lease = status["lease"]
    assert f"/{lease}\n" in pool.kubectl("get", "vramleases", "-o", "name")
    serving = pool.executors() - before
    assert len(serving) == 1

    deleting = threading.Thread(target=pool.kubectl, args=("delete", "gpusession", "afternoon", "--timeout=120s"))
    deleting.start()
    with pytest.raises(sahasra.SessionClosedError, match="default/afternoon was deleted") as caught:
        y.numpy()
    assert type(caught.value) is sahasra.SessionClosedError
    deleting.join(timeout=180)
    assert not deleting.is_alive(), "kubectl delete does not end"
    # Every other request raises the same error.
    for ask in (session.synchronise, x.numpy, session.load, lambda: session.put(np.ones(3)), lambda: session.jit(endless)(x)):
        with pytest.raises(sahasra.SessionClosedError, match="deleted"):
            ask()
    assert "afternoon" not in [made["metadata"]["name"] for made in client.sessions()]
    eventually(lambda: f"/{lease}\n" not in pool.kubectl("get", "vramleases", "-o", "name"))
    eventually(lambda: not serving & pool.executors())
    eventually(lambda: free(client, status["worker"]))
    # Closing a deleted session is no failure, and does not affect a later session of the same name.
    with sahasra.RemoteJaxSession.create(client, gpu_class=pool.gpu_class, vram="256Mi", name="afternoon") as other:
        session.close()
        assert other.name in [made["metadata"]["name"] for made in client.sessions() if "deletionTimestamp" not in made["metadata"]]
        assert other.put(np.ones(3, np.float32)).numpy().tolist() == [1, 1, 1]


def free(client, name):
    """Returns whether a worker stores nothing and executes nothing."""
    worker = next(worker for worker in client.workers() if worker["id"] == name)
    return worker["tensor_count"] == worker["stored_tensor_bytes"] == worker["active_executions"] == 0
