"""A TCP proxy on loopback that limits the rate in each direction to MEGABITS per second: a link of that bandwidth without a delay.

    paced_proxy.py HOST:PORT MEGABITS      # prints its own port

Data in excess of the rate waits at the sender, as on a real link. Ends when its standard input is closed.
"""

import asyncio
import contextlib
import socket
import sys

from proxying import until_told

READ_BYTES = 64 << 10
# Size of the proxy's socket buffers in each direction: small, so that a sender notices the limited rate soon.
SOCKET_BYTES = 128 << 10
# Seconds of transfer that may be caught up after the link was idle or the event loop was late.
BURST_SECONDS = 0.005


def narrow(connection):
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SOCKET_BYTES)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SOCKET_BYTES)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


async def pass_on(reader, writer, bytes_a_second):
    loop = asyncio.get_running_loop()
    due = loop.time()
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(READ_BYTES):
            due = max(due, loop.time() - BURST_SECONDS) + len(data) / bytes_a_second
            if (early := due - loop.time()) > 0:
                await asyncio.sleep(early)
            writer.write(data)
            await writer.drain()
    writer.close()


async def serve(address, bytes_a_second):
    host, port = address.rsplit(":", 1)

    async def connected(reader, writer):
        far = socket.socket()
        narrow(far)
        far.setblocking(False)
        try:
            await asyncio.get_running_loop().sock_connect(far, (host, int(port)))
        except OSError:
            writer.transport.abort()
            return
        far_reader, far_writer = await asyncio.open_connection(sock=far, limit=READ_BYTES)
        await asyncio.gather(pass_on(reader, far_writer, bytes_a_second), pass_on(far_reader, writer, bytes_a_second))

    listener = socket.socket()
    # Accepted connections inherit the listener's options.
    narrow(listener)
    listener.bind(("127.0.0.1", 0))
    await asyncio.start_server(connected, sock=listener, limit=READ_BYTES)
    await until_told(listener.getsockname()[1])


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1], float(sys.argv[2]) * 1e6 / 8))
