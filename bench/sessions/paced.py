"""Arrays of several kinds over links of limited bandwidth through the gateway, with adaptive compression and without, alternating.

    paced.py PLACES ROUNDS MIB MEGABITS...      # 0 megabits: loopback without a link

Prints the seconds of every round and the bytes on the link, by link, kind, direction and compression mode, and the CPU seconds of this process,
which includes the client.
"""

import contextlib
import sys
import time

from places import behind, opened, say

MODES = {"adaptive": "adaptive", "off": "never"}


def kinds(size):
    import jax.numpy as jnp
    import numpy as np

    random = np.random.default_rng(0)
    floats = size // 4
    gaussian = random.standard_normal(floats, np.float32) * np.float32(0.02)
    # Ranks of words, with the frequencies that they have in text.
    tokens = (np.exp(random.random(floats) * np.log(50257)) - 1).astype(np.int32)
    sparse = np.where(random.random(floats) < 0.01, gaussian, np.float32(0))
    one_hot = np.zeros((floats // 1000, 1000), np.float32)
    one_hot[np.arange(len(one_hot)), random.integers(0, 1000, len(one_hot))] = 1
    # 28 × 28 digits: noisy strokes on black.
    row, column = np.mgrid[-14:14, -14:14]
    stroke = (row**2 + column**2 < 60) & (row**2 + column**2 > 20)
    digits = random.integers(200, 256, (size // 784, 28, 28), np.uint8) * stroke.astype(np.uint8)
    return {
        "zeros_f32": jnp.zeros(floats, jnp.float32),
        "one_hot_f32": jnp.asarray(one_hot),
        "sparse_f32": jnp.asarray(sparse),
        "digits_u8": jnp.asarray(digits),
        "tokens_s32": jnp.asarray(tokens),
        "gaussian_bf16": jnp.asarray(random.standard_normal(size // 2, np.float32) * 0.02, jnp.bfloat16),
        "gaussian_f32": jnp.asarray(gaussian),
    }


def timed(session, work, index):
    """Returns seconds, CPU seconds, bytes on the link, and the result."""
    bytes_before, cpu_before, began = session.traffic[index], time.process_time(), time.perf_counter()
    result = work()
    return time.perf_counter() - began, time.process_time() - cpu_before, session.traffic[index] - bytes_before, result


def one_way(session, array):
    """Uploads and downloads the array once. Returns the measurements of both directions."""

    def put():
        tensor = session.put(array)
        session.synchronise()
        return tensor

    *up, tensor = timed(session, put, 0)
    *down, back = timed(session, tensor.numpy, 1)
    if back.tobytes() != bytes(memoryview(array_bytes(array))):
        raise ValueError("what came back is not what was sent")
    del tensor
    session.synchronise()
    return {"up": up, "down": down}


def array_bytes(array):
    import numpy as np

    return np.asarray(array).view(np.uint8).reshape(-1)


def measure(megabits, rounds, mebibytes):
    arrays = kinds(mebibytes << 20)
    with behind("paced_proxy.py", megabits) if megabits else contextlib.nullcontext() as url, contextlib.ExitStack() as stack:
        sessions = {mode: stack.enter_context(opened("gateway", url=url, compression=option)) for mode, option in MODES.items()}
        for kind, array in arrays.items():
            measurements = {mode: {"up": [], "down": []} for mode in MODES}
            for turn in range(-1, rounds):
                for mode, session in sessions.items():
                    for direction, measurement in one_way(session, array).items():
                        # The first round is not recorded, because adaptive compression still measures the link.
                        if turn >= 0:
                            measurements[mode][direction].append(measurement)
            for mode, directions in measurements.items():
                for direction, measured in directions.items():
                    seconds, cpu, sent = ([measurement[place] for measurement in measured] for place in range(3))
                    where = {"megabits": megabits, "kind": kind, "mode": mode, "direction": direction}
                    say(name="paced", **where, array_bytes=array.nbytes, seconds=seconds, cpu_seconds=cpu, line_bytes=sent)


def main():
    rounds, mebibytes, *lines = (int(argument) for argument in sys.argv[2:])
    for megabits in lines:
        measure(megabits, rounds, mebibytes)


main()
