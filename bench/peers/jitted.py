"""The training step of examples/jax-mlp on other systems: run by bench/suites/sessions.py in the peers' environment.

    jitted.py SYSTEM ROUNDS MIB...

`ray` is an actor that holds the jitted function and its state; a step is a method call. `pipe` is the minimum for any system: a process
that holds function and state and is called over a `multiprocessing.Pipe`. Each alternates with the same loop in this process (`local`).
`pipelined` requests 1000 steps without answers and then waits for the state; `synchronous` reads the loss of every step. Bulk data is
uploaded into a JAX array in the other process, and downloaded into a NumPy array. Prints the seconds of every round as JSON lines.
"""

import json
import multiprocessing
import os
import pathlib
import sys
import time

os.environ["JAX_PLATFORMS"] = "cpu"
SESSIONS = str(pathlib.Path(__file__).resolve().parents[1] / "sessions")
sys.path.insert(0, SESSIONS)
# Ray's workers import the step from there, too.
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [SESSIONS, os.environ.get("PYTHONPATH")]))

import numpy as np  # noqa: E402

STEPS = 1000
# Number of synchronous steps: fewer, because each takes longer.
SYNCHRONOUS_STEPS = 300


class Holder:
    """The function, its state, and an array."""

    def __init__(self, points):
        import jax
        import mlp

        self.jax, self.step = jax, jax.jit(mlp.train_step, donate_argnums=0)
        self.state, self.rest = jax.device_put(mlp.beginning(points))
        self.loss = self.array = None

    def train(self):
        self.state, self.loss = self.step(self.state, *self.rest)

    def train_and_tell(self):
        self.train()
        return float(self.loss)

    def wait(self):
        self.jax.block_until_ready(self.state)

    def hold(self, array):
        self.array = self.jax.block_until_ready(self.jax.device_put(array))

    def held(self):
        return np.asarray(self.array)


class Local(Holder):
    """The function and its state in this process."""

    def ask(self, method):
        getattr(self, method)()

    def answer(self, method, *arguments):
        return getattr(self, method)(*arguments)

    def close(self):
        pass


class Ray:
    """The function and its state in an actor of Ray. Starting Ray is not measured."""

    def __init__(self, points):
        import ray

        ray.init(num_cpus=2, include_dashboard=False, logging_level="ERROR", log_to_driver=False, _node_ip_address="127.0.0.1")
        self.ray, self.actor = ray, ray.remote(Holder).remote(points)

    def ask(self, method):
        getattr(self.actor, method).remote()

    def answer(self, method, *arguments):
        return self.ray.get(getattr(self.actor, method).remote(*arguments))

    def close(self):
        self.ray.shutdown()


def serve(connection, points):
    holder = Holder(points)
    while (order := connection.recv()) is not None:
        method, wants_answer, arguments = order
        result = getattr(holder, method)(*arguments)
        if wants_answer:
            connection.send(result)


class Pipe:
    """The function and its state in a process at the other end of a pipe, through which arrays pass as pickles."""

    def __init__(self, points):
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=serve, args=(theirs, points))
        self.process.start()

    def ask(self, method):
        self.connection.send((method, False, ()))

    def answer(self, method, *arguments):
        self.connection.send((method, True, arguments))
        return self.connection.recv()

    def close(self):
        self.connection.send(None)
        self.process.join()


def pipelined(place):
    for _ in range(STEPS):
        place.ask("train")
    place.answer("wait")


def synchronous(place):
    for _ in range(SYNCHRONOUS_STEPS):
        place.answer("train_and_tell")


def timed(work, *arguments):
    began = time.perf_counter()
    result = work(*arguments)
    return time.perf_counter() - began, result


def steps(system, name, points, rounds):
    places = {system.__name__.lower(): system(points), "local": Local(points)}
    try:
        for loop, count in ((pipelined, STEPS), (synchronous, SYNCHRONOUS_STEPS)):
            times = {place: [] for place in places}
            for turn in range(rounds + 1):
                for key, place in places.items():
                    seconds, _ = timed(loop, place)
                    if turn > 0:
                        times[key].append(seconds)
            print(json.dumps({"name": name, "loop": loop.__name__, "steps": count, "seconds": times}), flush=True)
    finally:
        for place in places.values():
            place.close()


def bulk(system, mebibytes, rounds):
    data = np.random.default_rng(0).integers(0, 2**32, (mebibytes << 20) // 4, np.uint32)
    place = system(32)
    times = {"up": [], "down": []}
    try:
        for turn in range(rounds + 1):
            up, _ = timed(place.answer, "hold", data)
            down, back = timed(place.answer, "held")
            if turn > 0:
                times["up"].append(up)
                times["down"].append(down)
            elif not np.array_equal(back, data):
                raise ValueError("what came back is not what was sent")
            del back
    finally:
        place.close()
    for direction, seconds in times.items():
        print(json.dumps({"name": "bulk", "mebibytes": mebibytes, "direction": direction, "seconds": seconds}), flush=True)


def main():
    from mlp import POINTS

    system, rounds = {"ray": Ray, "pipe": Pipe}[sys.argv[1]], int(sys.argv[2])
    for name, points in POINTS.items():
        steps(system, name, points, rounds)
    for mebibytes in sys.argv[3:]:
        bulk(system, int(mebibytes), rounds)


if __name__ == "__main__":
    main()
