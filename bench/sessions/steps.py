"""Dependent steps from Python, in sessions and in local JAX, alternating: seconds of every round, by place, as JSON lines.

    steps.py PLACES PLUGIN ROUNDS

`pipelined` is 1000 steps and the final synchronisation; `synchronous` reads the loss of every step. Local JAX is measured twice: with the
CPU backend of jaxlib, and with the session's own plugin in this process (`plugin`). A process at the other end of a pipe
(bench/peers/jitted.py) alternates with the synchronous steps. `matmul` is a step of at least 5 ms. Then round trips
and readbacks of 64 bytes are measured.
"""

import contextlib
import os
import pathlib
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "peers"))
from jitted import Pipe  # noqa: E402

if __name__ == "__main__":
    # Must be set before JAX reads it. The session's plugin is a platform of its own here, jaxlib's CPU another; the pipe's process uses the latter.
    os.environ["JAX_PLATFORMS"] = "plugin,cpu"

import jax  # noqa: E402
import numpy as np  # noqa: E402
from jax._src import xla_bridge  # noqa: E402

from mlp import POINTS, STEPS, beginning, train_step  # noqa: E402
from places import opened, say  # noqa: E402

ROUNDS = int(sys.argv[3])
# Number of steps when each is awaited.
SYNCHRONOUS_STEPS = 300
# Minimum seconds of a step of `matmul`, steps per round, and rounds for each round of the other loops: many short rounds, because a step that
# keeps both cores busy varies by a tenth from one moment to the next.
LONG_STEP, LONG_STEPS, LONG_ROUNDS = 0.0055, 20, 4
LATENCIES = 300


class Place:
    """A place where a function runs: the function, its current state, the constant arguments, and how to wait for the state."""

    def __init__(self, step, state, rest, wait):
        self.step, self.state, self.rest, self.wait = step, state, rest, wait

    def pipelined(self, steps):
        for _ in range(steps):
            self.state, _ = self.step(self.state, *self.rest)
        self.wait(self.state)

    def synchronous(self, steps):
        for _ in range(steps):
            self.state, value = self.step(self.state, *self.rest)
            float(value)


class Piped(Pipe):
    """A process that holds function and state and is called over a pipe."""

    def synchronous(self, steps):
        for _ in range(steps):
            self.answer("train_and_tell")


def local(function, state, rest, platform):
    there = jax.device_put((state, rest), jax.devices(platform)[0])
    return Place(jax.jit(function, donate_argnums=0), *there, jax.block_until_ready)


def everywhere(sessions, function, state, rest):
    """Returns the function at every place, as {place: Place}."""
    found = {"jaxlib": local(function, state, rest, "cpu"), "plugin": local(function, state, rest, "plugin")}
    for way, session in sessions.items():
        wait = lambda _, session=session: session.synchronise()  # noqa: E731
        found[way] = Place(session.jit(function, donate_argnums=0), *session.put((state, rest)), wait)
    return found


def in_turns(name, places, loop, steps, rounds=ROUNDS):
    times = {key: [] for key in places}
    for turn in range(-1, rounds):
        # The order rotates, so that the after-effects of a place fall on each of the others in turn.
        order = list(places)
        for key in order[turn % len(order) :] + order[: turn % len(order)]:
            began = time.perf_counter()
            getattr(places[key], loop)(steps)
            if turn >= 0:
                times[key].append(time.perf_counter() - began)
    say(name=name, loop=loop, steps=steps, seconds=times)


def matmul_step(state):
    """Multiplies the state by a rotation and by its inverse, so that its values stay the same."""
    x, a = state
    x = (x @ a) @ a.T
    return (x, a), x[0, 0]


def long_state():
    """Returns a state for `matmul_step` with which a step in local JAX takes at least `LONG_STEP` seconds."""
    size = 512
    while True:
        rotation, _ = np.linalg.qr(np.random.default_rng(0).normal(size=(size, size)))
        state = (np.ones((size, size), np.float32), rotation.astype(np.float32))
        place = local(matmul_step, state, (), "cpu")
        place.pipelined(3)
        took = []
        for _ in range(3):
            began = time.perf_counter()
            place.pipelined(10)
            took.append((time.perf_counter() - began) / 10)
        if min(took) >= LONG_STEP:
            return state
        size += 128


def latencies(way, session):
    small = session.put(np.ones(16, np.float32))
    session.synchronise()
    trips, reads = [], []
    for _ in range(LATENCIES):
        began = time.perf_counter()
        session.synchronise()
        between = time.perf_counter()
        small.numpy()
        trips.append(between - began)
        reads.append(time.perf_counter() - between)
    say(name="readback", way=way, round_trip=trips, readback=reads)


def main():
    xla_bridge.register_plugin("plugin", library_path=sys.argv[2])
    with contextlib.ExitStack() as stack:
        sessions = {way: stack.enter_context(opened(way)) for way in ("direct", "gateway")}
        with jax.default_device(jax.devices("cpu")[0]):
            for name, points in POINTS.items():
                places = everywhere(sessions, train_step, *beginning(points))
                in_turns(name, places, "pipelined", STEPS)
                with contextlib.closing(Piped(points)) as piped:
                    in_turns(name, places | {"pipe": piped}, "synchronous", SYNCHRONOUS_STEPS)
            in_turns("matmul", everywhere(sessions, matmul_step, long_state(), ()), "pipelined", LONG_STEPS, LONG_ROUNDS * ROUNDS)
        for way, session in sessions.items():
            latencies(way, session)


if __name__ == "__main__":
    main()
