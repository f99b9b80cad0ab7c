"""A loop of 100 dependent steps through the gateway, over a link with a delay in each direction and without that link, alternating.

    delayed.py PLACES MILLISECONDS ROUNDS      # MILLISECONDS: delay in each direction

Prints the seconds of every round with and without the link, and the seconds of round trips.
"""

import sys
import time

from mlp import beginning, train_step
from places import behind, opened, say

STEPS, TRIPS = 100, 20
MILLISECONDS, ROUNDS = float(sys.argv[2]), int(sys.argv[3])


def loop(session, step, held):
    began = time.perf_counter()
    state, rest = held
    for _ in range(STEPS):
        state, _ = step(state, *rest)
    held[0] = state
    session.synchronise()
    return time.perf_counter() - began


def trip(session):
    began = time.perf_counter()
    session.synchronise()
    return time.perf_counter() - began


def main():
    with behind("delay_proxy.py", MILLISECONDS) as url, opened("gateway") as near, opened("gateway", url=url) as far:
        lines = {}
        for name, session in (("near", near), ("far", far)):
            lines[name] = (session, session.jit(train_step, donate_argnums=0), list(session.put(beginning(32))))
        for line in lines.values():
            loop(*line)
        times = {name: [] for name in lines}
        for _ in range(ROUNDS):
            for name, line in lines.items():
                times[name].append(loop(*line))
        trips = {name: [trip(session) for _ in range(TRIPS)] for name, (session, _, _) in lines.items()}
        say(name="delayed", steps=STEPS, seconds=times, round_trips=trips)


main()
