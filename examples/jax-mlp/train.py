"""Trains a small network on each of four workers at the same time: 100 steps each, during which no parameters are downloaded.

The networks learn to tell three spirals apart. Each session starts from its own seed; only losses and, at the end, predictions for
points outside the training data are downloaded. Run it while ``sahasra up --workers 4 --port 8000`` is running.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
from sahasra import RemoteJaxSession, SahasraClient

CLASSES = 3
WIDTHS = (2, 64, 64, CLASSES)
STEPS = 100
RATE = 0.02
WANTED = 0.9375


def spirals(points: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns points of three spiral arms, f32[points, 2], and the arm of each, i32[points]."""
    random = np.random.default_rng(seed)
    arm = random.integers(0, CLASSES, points)
    along = random.uniform(0.1, 1.0, points)
    angle = 2 * np.pi * arm / CLASSES + 3.5 * along + random.normal(0, 0.3, points)
    return np.stack([along * np.cos(angle), along * np.sin(angle)], axis=1).astype(np.float32), arm.astype(np.int32)


def initial(seed: int) -> list[dict[str, jax.Array]]:
    keys = jax.random.split(jax.random.key(seed), len(WIDTHS) - 1)
    shapes = zip(keys, WIDTHS[:-1], WIDTHS[1:], strict=True)
    return [{"w": jax.random.normal(key, (a, b)) * jnp.sqrt(2 / a), "b": jnp.zeros(b)} for key, a, b in shapes]


def logits(parameters, x):
    for layer in parameters[:-1]:
        x = jax.nn.relu(x @ layer["w"] + layer["b"])
    return x @ parameters[-1]["w"] + parameters[-1]["b"]


def loss(parameters, x, labels):
    return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(logits(parameters, x)), labels[:, None], axis=1))


def train_step(state, x, labels):
    """One step of Adam. ``state``: parameters, first moments, second moments, step number."""
    parameters, first, second, step = state
    value, slope = jax.value_and_grad(loss)(parameters, x, labels)
    step = step + 1
    first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, first, slope)
    second = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, second, slope)

    def moved(p, m, v):
        return p - RATE * (m / (1 - 0.9**step)) / (jnp.sqrt(v / (1 - 0.999**step)) + 1e-8)

    return (jax.tree.map(moved, parameters, first, second), first, second, step), value


def predict(parameters, x):
    return jnp.argmax(logits(parameters, x), axis=1)


def train(session: RemoteJaxSession, seed: int, data: tuple[np.ndarray, np.ndarray], unseen: np.ndarray) -> tuple[np.ndarray, float]:
    """Returns the predictions for the unseen points after training, i32[points], and the last loss."""
    step = session.jit(train_step, donate_argnums=0)
    parameters = initial(seed)
    zeros = jax.tree.map(jnp.zeros_like, parameters)
    state = session.put((parameters, zeros, zeros, jnp.float32(0)))
    points, labels = session.put(data)
    state, _ = step(state, points, labels)
    session.synchronise()

    before = session.traffic
    for _ in range(STEPS - 1):
        state, value = step(state, points, labels)
    last = float(value)
    after = session.traffic
    size = sum(leaf.size * 4 for leaf in jax.tree.leaves(parameters))
    back = after.received_bytes - before.received_bytes
    there = after.sent_bytes - before.sent_bytes
    print(f"  {session.device}: loss {last:.4f}; {STEPS - 1} steps sent {there:,} bytes and got {back:,} back; the parameters are {size:,}")
    if back >= size:
        sys.exit(f"{session.device}: more came back than a loss")

    return session.jit(predict)(state[0], unseen).numpy(), last


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--url", default="http://127.0.0.1:8000", help="of the gateway, or of `sahasra up`")
    arguments.add_argument("--sessions", type=int, default=4, help="number of sessions, each on a worker of its own if there are enough")
    options = arguments.parse_args()

    client = SahasraClient(options.url)
    data, (unseen, truth) = spirals(600, seed=0), spirals(512, seed=1)
    with contextlib.ExitStack() as stack:
        sessions = [stack.enter_context(RemoteJaxSession.create(client, vram="256Mi")) for _ in range(options.sessions)]
        print(f"sessions on {', '.join(session.device for session in sessions)}")
        answers = [train(session, seed, data, unseen)[0] for seed, session in enumerate(sessions)]

    accuracies = [float((answer == truth).mean()) for answer in answers]
    print(f"right of {len(truth)} points that no step has seen: {', '.join(f'{accuracy:.2%}' for accuracy in accuracies)}")
    if min(accuracies) < WANTED:
        sys.exit(f"one network is below {WANTED:.2%}")
    print(f"after close: {freed(client)}")


def freed(client: SahasraClient) -> str:
    """Waits until no worker holds a tensor, for at most 10 seconds. Returns the tensor counts as text."""
    until = time.monotonic() + 10
    while True:
        tensors = {worker["id"]: worker["tensor_count"] for worker in client.workers()}
        if not any(tensors.values()):
            return ", ".join(f"{worker} has {count} tensors" for worker, count in tensors.items())
        if time.monotonic() > until:
            sys.exit(f"tensors were left: {tensors}")
        time.sleep(0.05)


if __name__ == "__main__":
    main()
