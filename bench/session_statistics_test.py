"""Tests of the statistics of sessions."""

import unittest

import session_statistics


class Figures(unittest.TestCase):
    def test_overhead_is_of_pairs_and_a_step(self):
        self.assertEqual([round(value, 6) for value in session_statistics.overhead([0.3, 0.2], [0.1, 0.1], 1000)], [200, 100])
        # Rounds must be paired: a round that only one side has is an error.
        self.assertRaises(ValueError, session_statistics.overhead, [0.3], [0.1, 0.1], 1000)

    def test_twice_the_time_is_half_the_throughput(self):
        self.assertEqual(session_statistics.share([2.0, 1.0], [1.0, 1.0]), [50.0, 100.0])

    def test_rates_are_in_gigabytes_of_a_thousand_million(self):
        self.assertAlmostEqual(session_statistics.rate(256, [0.5])[0], 0.536870912)

    def test_a_loop_is_measured_in_round_trips_of_the_link(self):
        # Without the link a round trip takes 1 ms. The link adds 30 ms to a round trip and 45 ms to the loop.
        self.assertAlmostEqual(session_statistics.round_trips_more([0.055], [0.010], [0.031], [0.001]), 1.5)

    def test_each_transport_has_its_own_goal_and_is_compared_with_every_place_of_local_jax(self):
        seconds = {"plugin": [0.1], "jaxlib": [0.2], "direct": [0.25], "gateway": [0.35]}
        line = {"name": "mlp", "steps": 1000, "seconds": seconds}
        results = {result.name: result for result in session_statistics.overheads("area", line, {"direct": 100}, ("plugin", "jaxlib"), ("direct", "gateway"))}
        direct = results["area/mlp/direct/overhead_over_plugin"]
        self.assertAlmostEqual(direct.value, 150)
        self.assertFalse(direct.met())
        self.assertEqual({place: round(value) for place, value in direct.peer.items()}, {"plugin": 100, "jaxlib": 200, "direct": 250})
        self.assertTrue(results["area/mlp/direct/overhead_over_jaxlib"].met())
        self.assertIsNone(results["area/mlp/gateway/overhead_over_plugin"].goal)

    def test_an_overhead_is_compared_with_the_peers_overhead_over_the_same_place(self):
        line = {"steps": 1000, "seconds": {"jaxlib": [0.1, 0.2, 0.1], "pipe": [0.2, 0.3, 0.9], "direct": [0.15, 0.25, 0.2]}}
        self.assertAlmostEqual(session_statistics.of_overhead(line, "direct", "pipe", "jaxlib"), 0.5)
        self.assertIsNone(session_statistics.of_overhead(line, "direct", "jaxlib", "jaxlib"))

    def test_bulk_is_compared_with_the_raw_copy_of_the_same_size_and_direction(self):
        def line(way, mebibytes, direction, seconds):
            return {"way": way, "mebibytes": mebibytes, "direction": direction, "seconds": [seconds]}

        lines = [line("raw", 64, "up", 0.1), line("raw_warm", 64, "up", 0.05), line("direct", 64, "up", 0.125)]
        lines += [line("raw", 64, "down", 0.2), line("raw_warm", 64, "down", 0.1), line("gateway", 64, "down", 0.4)]
        results = {result.name: result for result in session_statistics.bulk(lines, 80)}
        self.assertEqual(results["sessions/bulk_64mib/up/direct/of_raw"].value, 80)
        self.assertTrue(results["sessions/bulk_64mib/up/direct/of_raw"].met())
        self.assertEqual(results["sessions/bulk_64mib/up/direct/of_raw_warm"].value, 40)
        self.assertIsNone(results["sessions/bulk_64mib/up/direct/of_raw_warm"].goal)
        self.assertEqual(results["sessions/bulk_64mib/down/gateway/of_raw"].value, 50)
        self.assertIsNone(results["sessions/bulk_64mib/down/gateway/of_raw"].goal)

    def test_compressed_and_uncompressed_transfers_of_the_same_rounds_are_compared(self):
        def line(megabits, mode, seconds, sent, cpu):
            return {
                "megabits": megabits, "kind": "zeros", "direction": "up", "mode": mode, "array_bytes": 100_000_000,
                "seconds": seconds, "line_bytes": sent, "cpu_seconds": cpu,
            }  # fmt: skip

        lines = [line(100, "adaptive", [2.0, 4.0], [1_000_000, 3_000_000], [0.1, 0.1]), line(100, "off", [8.0, 8.0], [100_000_000] * 2, [0.1, 0.1])]
        lines += [line(0, "adaptive", [0.1], [100_000_000], [0.06]), line(0, "off", [0.1], [100_000_000], [0.05])]
        results = {result.name: result for result in session_statistics.paced(lines)}
        faster = results["sessions/paced_100mbit/zeros/up/of_uncompressed"]
        self.assertEqual(faster.value, 300)
        self.assertEqual({mode: round(rate, 1) for mode, rate in faster.peer.items()}, {"adaptive": 37.5, "off": 12.5})
        self.assertEqual(results["sessions/paced_100mbit/zeros/up/bytes"].value, 2)
        self.assertNotIn("sessions/paced_100mbit/zeros/up/cpu_more", results)
        self.assertAlmostEqual(results["sessions/unpaced/zeros/up/cpu_more"].value, 10)
        self.assertTrue(faster.met())
        self.assertIsNone(results["sessions/unpaced/zeros/up/of_uncompressed"].goal)

    def test_many_sessions_collapse_when_less_than_half_is_left_of_the_best(self):
        def line(sessions, seconds):
            return {"sessions": sessions, "steps": 100, "seconds": [seconds], "executors": sessions, "agent_kib": 2048, "executors_kib": 1024 * sessions}

        def of_best(most_seconds):
            return list(session_statistics.many([line(1, 0.1), line(8, 0.4), line(64, most_seconds)]))[-1]

        # The best throughput is that of 8 sessions: 2000 steps per second.
        self.assertEqual(of_best(6.4).value, 50)
        self.assertTrue(of_best(6.4).met())
        self.assertFalse(of_best(7).met())


if __name__ == "__main__":
    unittest.main()
