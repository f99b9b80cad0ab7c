"""Tests of the results of suites: python3 -m unittest discover bench '*_test.py'"""

import unittest

from measure import Result


class Results(unittest.TestCase):
    def test_the_value_is_the_median_of_the_runs_unless_the_best_is_requested(self):
        self.assertEqual(Result.of_runs("a", [3.0, 1.0, 2.0], "s").value, 2.0)
        self.assertEqual(Result.of_runs("a", [3.0, 1.0, 2.0], "s", value="best").value, 1.0)
        self.assertEqual(Result.of_runs("a", [3.0, 1.0, 2.0], "1/s", value="best", better="higher").value, 3.0)

    def test_a_goal_is_met_on_its_better_side(self):
        self.assertTrue(Result("a", 0.3, "s", goal=0.3).met())
        self.assertFalse(Result("a", 0.31, "s", goal=0.3).met())
        self.assertTrue(Result("a", 60_000, "1/s", goal=50_000, better="higher").met())
        self.assertFalse(Result("a", 40_000, "1/s", goal=50_000, better="higher").met())

    def test_the_json_contains_peers_and_spread_only_if_present(self):
        once = Result("a", 1.0, "s").as_json()
        self.assertEqual(once, {"name": "a", "value": 1.0, "unit": "s", "goal": None, "better": "lower"})
        often = Result.of_runs("a", [2.0, 1.0], "s", peer={"ray": 3.0}).as_json()
        self.assertEqual(often["peer"], {"ray": 3.0})
        self.assertEqual(often["spread"], {"runs": 2, "best": 1.0, "median": 1.5, "worst": 2.0})


if __name__ == "__main__":
    unittest.main()
