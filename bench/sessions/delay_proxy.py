"""A TCP proxy on loopback that forwards all data after a delay, in each direction, without limiting the rate: a link of unlimited bandwidth.

    delay_proxy.py HOST:PORT MILLISECONDS      # prints its own port

Ends when its standard input is closed.
"""

import asyncio
import collections
import contextlib
import socket
import sys
import time

from proxying import until_told


class Line(asyncio.Protocol):
    """One end of a connection: data received here is forwarded to `other` after the delay, in order."""

    def __init__(self, delay):
        self.delay = delay
        self.other = None
        self.transport = None
        # Queue of (time, action) in order, because the event loop does not guarantee the order of timers of the same time.
        self.waiting = collections.deque()

    def connection_made(self, transport):
        self.transport = transport
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def data_received(self, data):
        self.later(lambda: self.other.transport.write(data))

    def eof_received(self):
        self.later(self.end_other)
        return True

    def end_other(self):
        # The other end may have broken the connection, and its own `connection_lost` may not have been called yet.
        with contextlib.suppress(OSError):
            self.other.transport.write_eof()

    def connection_lost(self, _):
        self.later(lambda: self.other.transport.close())

    def later(self, act):
        loop = asyncio.get_running_loop()
        self.waiting.append((loop.time() + self.delay, act))
        if len(self.waiting) == 1:
            loop.call_at(self.waiting[0][0], self.due)

    def due(self):
        loop = asyncio.get_running_loop()
        # The event loop may call up to one tick of its clock early.
        until = loop.time() + time.get_clock_info("monotonic").resolution
        while self.waiting and self.waiting[0][0] <= until:
            _, act = self.waiting.popleft()
            if self.other is not None and not self.other.transport.is_closing():
                act()
        if self.waiting:
            loop.call_at(self.waiting[0][0], self.due)


class Entrance(Line):
    """The end towards the client. Data sent before the other end is connected waits like all other data."""

    def __init__(self, delay, host, port):
        super().__init__(delay)
        self.host, self.port = host, port
        self.ready = None

    def connection_made(self, transport):
        super().connection_made(transport)
        transport.pause_reading()
        self.ready = asyncio.ensure_future(self.connect())

    async def connect(self):
        try:
            _, self.other = await asyncio.get_running_loop().create_connection(lambda: Line(self.delay), self.host, self.port)
        except OSError:
            self.transport.abort()
            return
        self.other.other = self
        self.transport.resume_reading()


async def serve(address, delay):
    host, port = address.rsplit(":", 1)
    server = await asyncio.get_running_loop().create_server(lambda: Entrance(delay, host, int(port)), "127.0.0.1", 0)
    await until_told(server.sockets[0].getsockname()[1])


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1], float(sys.argv[2]) / 1000))
