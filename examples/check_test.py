"""Tests that the host checks accept correct results and reject wrong ones: python3 -m unittest discover examples '*_test.py'"""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

HERE = pathlib.Path(__file__).resolve().parent
COMPILER = shutil.which(os.environ.get("CC", "cc"))


def expected_rows(name):
    """Returns the lines that the example's host check prints with `--expect`."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, HERE / name / "verify.py"]
        if (HERE / name / "verify.c").exists():
            command = [f"{folder}/verify"]
            subprocess.run([COMPILER, "-std=c11", "-O2", "-ffp-contract=off", HERE / name / "verify.c", "-lm", "-o", command[0]], check=True)
        return subprocess.run([*command, "--expect"], check=True, capture_output=True, text=True).stdout.splitlines()


def check(name, rows, aggregate, complete="True"):
    """Runs examples/check. Returns its exit code and its output."""
    job = {"metadata": {"name": name},
           "status": {"aggregate": aggregate, "conditions": [{"type": "Complete", "status": complete}]}}
    with tempfile.TemporaryDirectory() as folder:
        files = pathlib.Path(folder, "job.json"), pathlib.Path(folder, "results.csv")
        files[0].write_text(json.dumps(job))
        files[1].write_text("\n".join(rows) + "\n")
        result = subprocess.run([sys.executable, HERE / "check", name, "--job", files[0], "--results", files[1]], capture_output=True, text=True)
    return result.returncode, result.stdout + result.stderr


def with_cell(rows, line, column, value):
    cells = rows[line].split(",")
    cells[column] = value
    return rows[:line] + [",".join(cells)] + rows[line + 1:]


@unittest.skipIf(COMPILER is None, "no C compiler")
class HyperparameterSearch(unittest.TestCase):
    name = "hyperparameter-search"

    @classmethod
    def setUpClass(cls):
        cls.rows = expected_rows(cls.name)

    def refused(self, rows, said, best=70, **more):
        code, text = check(self.name, rows, {"best": [{"index": best}]}, **more)
        self.assertEqual(code, 1, text)
        self.assertIn(said, text)

    def test_correct_results_in_any_order_are_accepted(self):
        code, text = check(self.name, self.rows[:1] + self.rows[:0:-1], {"best": [{"index": 70}]})
        self.assertEqual(code, 0, text)
        self.assertIn("best: index 70, learningRate 4.3, batchSize 32, dropout 0.1", text)

    def test_columns_are_identified_by_name(self):
        order = (0, 2, 3, 1, 4)
        rows = [",".join(row.split(",")[column] for column in order) for row in self.rows]
        code, text = check(self.name, rows, {"best": [{"index": 70}]})
        self.assertEqual(code, 0, text)
        self.refused([rows[0].replace("dropout", "learningRate"), *rows[1:]], "the columns are not")

    def test_a_row_that_is_cut_off_is_rejected(self):
        self.refused(self.rows[:-1] + ["999,1.0"], "not five numbers")

    def test_a_wrong_best_index_is_rejected(self):
        self.refused(self.rows, "claimed to be 80", best=80)

    def test_a_loss_off_by_more_than_the_tolerance_is_rejected(self):
        loss = float(self.rows[501].split(",")[4])
        self.refused(with_cell(self.rows, 501, 4, repr(loss + 2e-5)), "output0")

    def test_a_loss_that_is_not_a_number_is_rejected(self):
        self.refused(with_cell(self.rows, 501, 4, "nan"), "output0")

    def test_a_parameter_that_differs_from_the_formula_is_rejected(self):
        self.refused(with_cell(self.rows, 3, 2, "64"), "batchSize")

    def test_a_missing_index_is_rejected(self):
        self.refused(self.rows[:-1], "index 999 occurs 0 times")

    def test_a_duplicate_index_is_rejected(self):
        self.refused(self.rows + self.rows[-1:], "index 999 occurs 2 times")

    def test_a_job_that_is_not_complete_is_rejected(self):
        self.refused(self.rows, "is not complete", complete="False")


@unittest.skipIf(COMPILER is None, "no C compiler")
class MonteCarlo(unittest.TestCase):
    name = "monte-carlo"

    @classmethod
    def setUpClass(cls):
        cls.rows = expected_rows(cls.name)
        cls.mean = sum(float(row.split(",")[1]) for row in cls.rows[1:]) / 256

    def check(self, rows, mean, interval):
        return check(self.name, rows, {"values": [mean], "confidence95": [interval]})

    def test_correct_results_are_accepted(self):
        code, text = self.check(self.rows, self.mean, 0.001569)
        self.assertEqual(code, 0, text)

    def test_a_count_off_by_one_is_rejected(self):
        count = int(self.rows[9].split(",")[2])
        code, text = self.check(with_cell(self.rows, 9, 2, str(count + 1)), self.mean, 0.001569)
        self.assertEqual(code, 1)
        self.assertIn("points inside", text)

    def test_a_wrong_mean_is_rejected(self):
        self.assertEqual(self.check(self.rows, 3.14159, 0.001569)[0], 1)

    def test_a_wrong_interval_is_rejected(self):
        self.assertEqual(self.check(self.rows, self.mean, 0.0008)[0], 1)


class Saxpy(unittest.TestCase):
    name = "saxpy"

    def test_correct_results_are_accepted(self):
        code, text = check(self.name, expected_rows(self.name), {})
        self.assertEqual(code, 0, text)

    def test_an_array_in_one_cell_is_accepted(self):
        rows = [row.replace(",", " ").replace(" ", ",", 1) for row in expected_rows(self.name)]
        self.assertEqual(check(self.name, rows, {})[0], 0)

    def test_a_wrong_element_is_rejected(self):
        code, text = check(self.name, with_cell(expected_rows(self.name), 2, 5, "0"), {})
        self.assertEqual(code, 1)
        self.assertIn("element 36", text)

    def test_a_missing_chunk_is_rejected(self):
        self.assertEqual(check(self.name, expected_rows(self.name)[:-1], {})[0], 1)


if __name__ == "__main__":
    unittest.main()
