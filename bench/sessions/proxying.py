"""Shared by the proxies of this folder."""

import asyncio
import sys
import threading


async def until_told(port):
    """Prints the port and waits until standard input is closed."""
    print(port, flush=True)
    loop, over = asyncio.get_running_loop(), asyncio.Event()

    def wait():
        sys.stdin.read()
        loop.call_soon_threadsafe(over.set)

    threading.Thread(target=wait, daemon=True).start()
    await over.wait()
