"""Bulk transfers in both directions, in sessions and as a raw TCP copy over loopback, alternating. Prints the seconds of every round by size,
direction and transport.

    bulk.py PLACES ROUNDS MIB...
    bulk.py --peer               # the other end of the raw copy, a process of its own: prints its port

An upload is `session.put` of a JAX array and the following synchronisation; a download is `tensor.numpy()`. The raw copy transfers the same
sizes, with one dedicated thread at either end. It receives into newly allocated memory each time, as a tensor or an array does, and for
comparison (`raw_warm`) into memory that was used before.
"""

import contextlib
import mmap
import socket
import struct
import subprocess
import sys
import time

UP, DOWN, UP_WARM, DOWN_WARM, END = range(5)


def receive(connection, into):
    view = memoryview(into)
    while view:
        read = connection.recv_into(view)
        if read == 0:
            raise ConnectionError("the other end is gone")
        view = view[read:]


def memory(size):
    """Allocates new memory. Its pages, large ones if available, are provided on the first write, as for large NumPy arrays."""
    mapped = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    mapped.madvise(mmap.MADV_HUGEPAGE)
    return mapped


def peer():
    listener = socket.create_server(("127.0.0.1", 0))
    print(listener.getsockname()[1], flush=True)
    connection, _ = listener.accept()
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    warm = {}
    while True:
        order = bytearray(16)
        receive(connection, order)
        what, size = struct.unpack("<QQ", order)
        if what == END:
            return
        if size not in warm:
            warm[size] = memory(size)
            warm[size].write(b"\3" * size)
        if what in (UP, UP_WARM):
            receive(connection, memory(size) if what == UP else warm[size])
            connection.sendall(b"\1")
        else:
            connection.sendall(warm[size])


class Raw:
    """The raw copy, in the same directions and sizes."""

    def __init__(self):
        self.process = subprocess.Popen([sys.executable, __file__, "--peer"], stdout=subprocess.PIPE, text=True)
        self.connection = socket.create_connection(("127.0.0.1", int(self.process.stdout.readline())))
        self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.warm = {}

    def order(self, what, size):
        self.connection.sendall(struct.pack("<QQ", what, size))

    def up(self, data, warm):
        self.order(UP_WARM if warm else UP, data.nbytes)
        self.connection.sendall(data.data.cast("B"))
        receive(self.connection, bytearray(1))

    def down(self, size, warm):
        if warm and size not in self.warm:
            self.warm[size] = memory(size)
        into = self.warm[size] if warm else memory(size)
        self.order(DOWN_WARM if warm else DOWN, size)
        receive(self.connection, into)

    def close(self):
        self.order(END, 0)
        self.process.wait()


def timed(work):
    began = time.perf_counter()
    kept = work()
    return time.perf_counter() - began, kept


def measure(sessions, raw, rounds, mebibytes, say):
    import jax.numpy as jnp
    import numpy as np

    size = mebibytes << 20
    data = np.random.default_rng(0).integers(0, 2**32, size // 4, np.uint32)
    there = jnp.asarray(data)
    local = np.asarray(there)
    tensors = {way: session.put(there) for way, session in sessions.items()}

    def put(way, value):
        tensor = sessions[way].put(value)
        sessions[way].synchronise()
        return tensor

    works = {("up", "raw"): lambda: raw.up(local, False), ("up", "raw_warm"): lambda: raw.up(local, True)}
    works |= {("down", "raw"): lambda: raw.down(size, False), ("down", "raw_warm"): lambda: raw.down(size, True)}
    for way in sessions:
        works["up", way] = lambda way=way: put(way, there)
        works["down", way] = lambda way=way: tensors[way].numpy()
    # A NumPy array may be modified by its owner, so it is copied first.
    works["up", "direct_numpy"] = lambda: put("direct", data)
    times = {key: [] for key in works}
    for turn in range(-1, rounds):
        for (direction, way), work in works.items():
            seconds, kept = timed(work)
            if turn >= 0:
                times[direction, way].append(seconds)
            elif direction == "down" and way in sessions and not np.array_equal(kept, data):
                raise ValueError(f"what came back through {way} is not what was sent")
            # Frees the tensor in the session before the next measurement begins.
            del kept
            for session in sessions.values():
                session.synchronise()
    for (direction, way), seconds in times.items():
        say(name="bulk", mebibytes=mebibytes, direction=direction, way=way, seconds=seconds)


def main():
    from places import WAYS, opened, say

    rounds, sizes = int(sys.argv[2]), [int(size) for size in sys.argv[3:]]
    with contextlib.ExitStack() as stack:
        sessions = {way: stack.enter_context(opened(way, vram="1536Mi")) for way in WAYS}
        raw = Raw()
        stack.callback(raw.close)
        for mebibytes in sizes:
            measure(sessions, raw, rounds, mebibytes, say)


if sys.argv[1:] == ["--peer"]:
    peer()
else:
    main()
