"""Ends of sessions: broken connections, lost workers, full queues, closed sessions."""

import contextlib
import os
import signal
import threading

import jax.numpy as jnp
import numpy as np
import pytest

import sahasra


def test_a_broken_connection_is_resumed(worker):
    with worker.connect() as session:
        step = session.jit(lambda x: x * 2 + 1)
        x = session.put(jnp.zeros(1000))
        expected = 0.0
        for round_ in range(30):
            if round_ % 7 == 3:
                worker.cut()
            x = step(x)
            expected = expected * 2 + 1
        assert x.numpy()[0] == np.float32(expected)
        assert session._native.resumed() >= 1


def test_a_lost_worker_is_named(worker):
    session = worker.connect()
    x = session.put(jnp.zeros(1000))
    x.numpy()
    worker.kill()
    with pytest.raises(sahasra.WorkerLostError):
        session.synchronise()
    with pytest.raises(sahasra.WorkerLostError):
        x.numpy()


def test_a_failure_that_a_read_has_raised_is_not_raised_again_at_the_end_of_the_block(worker):
    def wide(x):
        return jnp.broadcast_to(x[:, None], (20_000, 20_000)).sum(0) @ jnp.ones((20_000, 20_000))

    with worker.connect() as session:
        failed = session.jit(wide)(jnp.ones(20_000))
        with pytest.raises(sahasra.OutOfDeviceMemoryError, match="execute wide failed"):
            failed.numpy()
        assert session.execute_jitted(lambda x: x + 1, (jnp.ones(2),)).output.numpy().tolist() == [2.0, 2.0]
    # One that nothing has raised is.
    with pytest.raises(sahasra.OutOfDeviceMemoryError, match="execute wide failed"):
        with worker.connect() as session:
            failed = session.jit(wide)(jnp.ones(20_000))
            session.execute_jitted(lambda x: x + 1, (jnp.ones(2),))


def test_a_block_that_reads_nothing_raises_the_loss_of_its_worker(worker):
    def bump(x):
        return x + 1

    with pytest.raises(sahasra.WorkerLostError, match="execute bump"):
        with worker.connect() as session:
            x = session.jit(bump)(session.put(jnp.zeros(1000)))
            worker.kill()
    with pytest.raises(sahasra.WorkerLostError):
        x.numpy()


@pytest.mark.parametrize("way", ["looked at", "told", "failed", "closed"])
def test_a_block_does_not_raise_a_loss_that_needs_no_report(worker, way):
    with pytest.raises(ZeroDivisionError) if way == "failed" else contextlib.nullcontext():
        with worker.connect() as session:
            x = session.put(jnp.zeros(1000))
            if way == "looked at":
                x.numpy()
            if way == "closed":
                session.close()
            worker.kill()
            if way == "told":
                with pytest.raises(sahasra.WorkerLostError):
                    x.numpy()
            if way == "failed":
                1 / 0


@contextlib.contextmanager
def full(worker):
    """A session whose worker accepts nothing, with a full queue of operations, and one of its tensors."""
    session = worker.connect()
    os.kill(worker.process.pid, signal.SIGSTOP)
    try:
        # The tensors are kept, because deleting them would add operations.
        made = [session.zeros(1) for _ in range(16_384)]
        yield session, made[0]
    finally:
        os.kill(worker.process.pid, signal.SIGCONT)
    session.close()


def test_a_call_that_waits_for_the_queue_is_interrupted_by_a_signal(worker):
    class Interrupted(Exception):
        pass

    def interrupt(*_):
        raise Interrupted

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with full(worker) as (session, _):
            signal.setitimer(signal.ITIMER_REAL, 0.5)
            with pytest.raises(Interrupted):
                session.zeros(1)
    finally:
        signal.signal(signal.SIGALRM, before)


def test_a_call_that_waits_for_the_queue_releases_the_gil(worker):
    with full(worker) as (session, tensor):
        asks = [threading.Thread(target=ask, daemon=True) for ask in (session.synchronise, tensor.numpy, session.load)]
        for ask in asks:
            # The call returns once the thread runs.
            ask.start()
        assert all(ask.is_alive() for ask in asks)
    for ask in asks:
        ask.join(60)
        assert not ask.is_alive()


def test_a_closed_session_raises_an_error(worker):
    session = worker.connect()
    x = session.put(jnp.zeros(3))
    session.close()
    session.close()
    with pytest.raises(sahasra.SessionClosedError):
        x.numpy()
    with pytest.raises(sahasra.SessionClosedError):
        session.put(jnp.zeros(3))


def test_tensors_of_another_session_are_rejected(session, worker):
    other = worker.connect()
    x = other.put(jnp.zeros(3))
    with pytest.raises(sahasra.InvalidArgumentError, match=r"argument x of .*is of session tested: download it first, with tensor\.session\.get"):
        session.jit(lambda x: x + 1)(x)
    with pytest.raises(sahasra.InvalidArgumentError, match=r"leaf \['x'\]\[1\]: .*is of session tested: download it first"):
        session.put({"x": [1.0, x]})
    moved = session.put(x.session.get(x))
    assert session.put({"x": moved})["x"] is moved
    moved.delete()
    with pytest.raises(sahasra.InvalidArgumentError, match=r"leaf \['x'\]: the tensor of shape \(3,\) and dtype float32 was deleted"):
        session.put({"x": moved})
    other.close()
