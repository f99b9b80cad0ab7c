"""Statistics of suites/sessions.py: overheads, shares and rates from seconds. Rounds are paired: measurements that ran one after the other
are compared.
"""

import statistics

from measure import Result


def overhead(there, here, steps):
    """Microseconds by which a step takes longer remotely than locally, for each round."""
    return [(far - near) / steps * 1e6 for far, near in zip(there, here, strict=True)]


def share(there, here):
    """Remote throughput as a percentage of the local throughput, for each round."""
    return [100 * near / far for far, near in zip(there, here, strict=True)]


def rate(mebibytes, seconds):
    """Gigabytes (10⁹ bytes) per second, for each round."""
    return [mebibytes * 2**20 / each / 1e9 for each in seconds]


def per_step(seconds, steps):
    """Microseconds per step, as the median of the rounds."""
    return statistics.median(seconds) / steps * 1e6


def round_trips_more(far, near, round_trip_far, round_trip_near):
    """Number of round trips over a slow link that a loop takes in addition to those without the link, computed from medians."""
    line = statistics.median(round_trip_far) - statistics.median(round_trip_near)
    return (statistics.median(far) - statistics.median(near)) / line


def of_overhead(line, way, peer, place):
    """Overhead of the transport `way` over `place`, divided by that of `peer` over the same place, as medians of the rounds. `None` if the peer
    has no overhead.
    """
    seconds, steps = line["seconds"], line["steps"]
    ours, theirs = (statistics.median(overhead(seconds[each], seconds[place], steps)) for each in (way, peer))
    return ours / theirs if theirs > 0 else None


def overheads(area, line, goals, places, ways):
    """Yields the results of one JSON line with seconds by place: for each transport, its overhead over each place of local JAX, and its goal."""
    seconds, steps = line["seconds"], line["steps"]
    for way in ways:
        peers = {place: per_step(seconds[place], steps) for place in places} | {way: per_step(seconds[way], steps)}
        for place in places:
            values = overhead(seconds[way], seconds[place], steps)
            name = f"{area}/{line['name']}/{way}/overhead_over_{place}"
            yield Result.of_runs(name, values, "µs/step", goal=goals.get(way), peer=peers)


def bulk(lines, goal):
    """Yields the results of bulk transfers: GB/s by size, direction and transport. For sessions also the percentage of the raw copies in the same
    rounds: of `raw`, into newly allocated memory, which has the goal if the connection is direct, and of `raw_warm`, into memory used before.
    """
    seconds = {(line["mebibytes"], line["direction"], line["way"]): line["seconds"] for line in lines}
    for (size, direction, way), ours in seconds.items():
        name = f"sessions/bulk_{size}mib/{direction}/{way}"
        yield Result.of_runs(name, rate(size, ours), "GB/s", better="higher")
        if way not in ("raw", "raw_warm"):
            for raw in ("raw", "raw_warm"):
                reached = goal if (way, raw) == ("direct", "raw") else None
                values = share(ours, seconds[size, direction, raw])
                yield Result.of_runs(f"{name}/of_{raw}", values, "%", better="higher", goal=reached)


def paced(lines):
    """Yields the results of arrays over links of limited bandwidth: the throughput with adaptive compression as a percentage of that without
    compression in the same rounds (with both throughputs in 10⁶ array bytes per second), and the bytes on the link. Without such a link
    (0 megabits) also the additional CPU time of the client.
    """
    found = {(line["megabits"], line["kind"], line["direction"], line["mode"]): line for line in lines}
    for (megabits, kind, direction, mode), ours in found.items():
        if mode == "off":
            continue
        off = found[megabits, kind, direction, "off"]
        name = f"sessions/paced_{megabits}mbit/{kind}/{direction}" if megabits else f"sessions/unpaced/{kind}/{direction}"
        rates = {each["mode"]: statistics.median(each["array_bytes"] / seconds / 1e6 for seconds in each["seconds"]) for each in (ours, off)}
        faster = share(ours["seconds"], off["seconds"])
        # Compression that gains nothing must not cost more than the variation between rounds. On loopback that variation exceeds the goal's margin,
        # so there is no goal.
        goal = 95 if megabits else None
        yield Result.of_runs(f"{name}/of_uncompressed", faster, "%", goal=goal, better="higher", peer=rates)
        bytes_share = [100 * sent / ours["array_bytes"] for sent in ours["line_bytes"]]
        yield Result.of_runs(f"{name}/bytes", bytes_share, "% of the array")
        if not megabits:
            more = [100 * (here - there) / seconds for here, there, seconds in zip(ours["cpu_seconds"], off["cpu_seconds"], off["seconds"], strict=True)]
            yield Result.of_runs(f"{name}/cpu_more", more, "% of a core")


def many(lines):
    """Yields the results of many concurrent sessions: their total steps per second, the total of the most sessions relative to the best, memory."""
    rates = {}
    for line in lines:
        count = line["sessions"]
        values = [count * line["steps"] / each for each in line["seconds"]]
        rates[count] = statistics.median(values)
        yield Result.of_runs(f"sessions/many_{count}/steps", values, "steps/s", better="higher")
        yield Result(f"sessions/many_{count}/agent_memory", line["agent_kib"] / 1024, "MiB")
        yield Result(f"sessions/many_{count}/executor_memory", line["executors_kib"] / 1024 / line["executors"], "MiB/session")
    most, best = max(rates), max(rates.values())
    # Fewer than half of the steps per second of the best number of sessions count as collapse.
    yield Result(f"sessions/many_{most}/of_best", 100 * rates[most] / best, "%", goal=50, better="higher")
