"""Goals by figures that are whole, missing or broken, steps that fail, and the header of drawn weights:
`python3 -m unittest discover --start-directory infra/gpu`."""

import contextlib
import io
import json
import struct
import sys
import tempfile
import time
import unittest
from pathlib import Path

import goals
import model
import run

WEIGHTS = 1_200_000_000
SPEED = 2.4e12


def sides(ours: object, theirs: object = None, dtype: str = "bfloat16") -> list[dict]:
    found = [{"name": "millrace", "dtype": dtype, "tokens_per_s": ours}]
    return found if theirs is None else [*found, {"name": "transformers", "dtype": dtype, "tokens_per_s": theirs}]


def generated(one: list[dict], many: list[dict]) -> dict:
    return {"rows": [{"sequences": 1, "sides": one}, {"sequences": 64, "sides": many}]}


def trained(*shares: object) -> dict:
    return {"modes": [{"recompute": index == 0, "ours": {"mfu": share}} for index, share in enumerate(shares)]}


def verdicts(figures: dict[str, object], weights: int = WEIGHTS, speed: float = SPEED) -> list[str]:
    return [goal.verdict for goal in goals.table(figures, weights, speed)]


class Goals(unittest.TestCase):
    def test_what_is_reached_is_met_and_what_is_not_is_missed(self) -> None:
        # The memory allows 2,000 tokens a second.
        figures = {"generate": generated(sides(1000.0), sides(500.0, 100.0)), "train": trained(0.3, 0.4),
                   "train-long": trained(0.39, 0.1)}
        self.assertEqual(verdicts(figures), ["met", "met", "met", "missed", "not measured"])
        for seconds, verdict in ((1.5, "met"), (1.51, "missed"), (0, "not measured"), ("soon", "not measured")):
            self.assertEqual(verdicts({"generate": {"ready": {"ready_s": seconds}}})[4], verdict)
        figures["generate"] = generated(sides(999.0), sides(499.0, 100.0))
        self.assertEqual(verdicts(figures)[:2], ["missed", "missed"])

    def test_the_table_has_the_measured_values(self) -> None:
        figures = {"generate": generated(sides(1000.0), sides(500.0, 100.0)), "train": trained(0.3, 0.41)}
        found = goals.table(figures, WEIGHTS, SPEED)
        self.assertEqual(found[0].measured, "1000 of 2000 tokens/s (50.0%)")
        self.assertEqual(found[1].measured, "500 and 100 tokens/s (5.00 times)")
        self.assertEqual(found[2].measured, "41.0%, activations kept")
        text = goals.printed(found)
        self.assertEqual(len(text.splitlines()), 6)
        self.assertIn("1000 of 2000 tokens/s (50.0%)", text)

    def test_an_engine_in_f32_reads_twice_the_file(self) -> None:
        figures = generated(sides(1000.0, dtype="float32"), [])
        self.assertEqual(goals.of_bandwidth(figures, WEIGHTS, SPEED), (1000.0, 1000.0))

    def test_without_a_rival_only_what_needs_it_is_not_measured(self) -> None:
        figures = {"generate": generated(sides(1000.0), sides(500.0)), "train": trained(None, None)}
        self.assertEqual(verdicts(figures)[:3], ["met", "not measured", "not measured"])

    def test_rows_that_are_missing_are_not_measured(self) -> None:
        nothing = ["not measured"] * 5
        for figures in ({}, {"generate": None, "train": None}, {"generate": {}, "train": {}},
                        {"generate": {"rows": []}, "train": {"modes": []}},
                        {"generate": {"rows": [{"sequences": 16, "sides": sides(9.0, 1.0)}]}},
                        {"generate": {"rows": [{"sequences": 1, "sides": []}, {"sequences": 64}]}}):
            self.assertEqual(verdicts(figures), nothing, figures)

    def test_zero_and_nonsense_are_not_measured(self) -> None:
        for number in (0, 0.0, -1, None, "fast", True, float("nan"), float("inf"), [], {}):
            figures = {"generate": generated(sides(number), sides(500.0, number)), "train": trained(number)}
            self.assertEqual(verdicts(figures), ["not measured"] * 5, number)
        figures = {"generate": generated(sides(1000.0), [])}
        self.assertEqual(verdicts(figures, weights=0)[0], "not measured")
        self.assertEqual(verdicts(figures, speed=0.0)[0], "not measured")
        self.assertEqual(verdicts({"generate": generated(sides(1000.0, dtype="int3"), [])})[0], "not measured")

    def test_figures_of_another_shape_are_not_measured(self) -> None:
        for figures in ([], "rows", 3, {"rows": {"sequences": 1}}, {"rows": [None, 1, "x", []]},
                        {"rows": [{"sequences": 1, "sides": [None, 7, {"name": "millrace"}]}], "modes": [None, {"ours": 1}]}):
            self.assertEqual(verdicts({"generate": figures, "train": figures}), ["not measured"] * 5, figures)

    def test_a_file_that_was_being_written_is_none(self) -> None:
        whole = json.dumps(generated(sides(1000.0), sides(500.0, 100.0)))
        self.assertIsNotNone(goals.parse(whole))
        for length in range(len(whole)):
            self.assertIsNone(goals.parse(whole[:length]), length)

    def test_a_log_of_kernels_that_were_not_used_is_found(self) -> None:
        source = Path(__file__).resolve().parents[2] / "workers/torch/src/gpu_kernels.rs"
        self.assertIn(goals.FELL_BACK, source.read_text(encoding="utf-8"))
        self.assertEqual(goals.fell_back(f"a\n WARN {goals.FELL_BACK}, more slowly\n"),
                         [f"WARN {goals.FELL_BACK}, more slowly"])
        self.assertEqual(goals.fell_back("all is well\n"), [])


class Steps(unittest.TestCase):
    def setUp(self) -> None:
        kept = tempfile.TemporaryDirectory()
        self.addCleanup(kept.cleanup)
        quiet = contextlib.redirect_stdout(io.StringIO())
        quiet.__enter__()
        self.addCleanup(quiet.__exit__, None, None, None)
        self.out = Path(kept.name)
        self.figures = self.out / "figures.json"

    def step(self, name: str, code: str, seconds: float = 30.0, figures: bool = True) -> run.Step:
        return run.Step(name, [sys.executable, "-c", code], seconds, self.figures if figures else None)

    def play(self, step: run.Step) -> run.Result:
        return run.play(step, {}, self.out, time.monotonic() + 60)

    def leaving(self, text: str, code: int = 0) -> str:
        return f"import sys; open({str(self.figures)!r}, 'w').write({text!r}); print('last'); sys.exit({code})"

    def test_the_limits_are_ten_minutes_together(self) -> None:
        for gpu in (True, False):
            todo = run.steps(gpu, self.out, True)
            self.assertEqual(sum(step.seconds for step in todo), 600)
            self.assertEqual([step.name for step in todo],
                             ["tests-kernels", "tests-cuda", "tests", "frozen-lake", "model", "generate", "train", "train-long", "half-billion"])

    def test_a_step_that_fails_stops_no_other_and_keeps_its_log_and_figures(self) -> None:
        todo = [self.step("bad", self.leaving('{"rows": []}', 3)), run.Step("none", ["/nowhere/program"], 30),
                self.step("good", "print('fine')", figures=False)]
        bad, none, good = run.play_all(todo, {}, self.out, 1)
        self.assertEqual((bad.verdict, bad.figures), ("failed: exit code 3", {"rows": []}))
        self.assertIn("last", (self.out / bad.log).read_text())
        self.assertTrue(none.verdict.startswith("failed: "))
        self.assertEqual((good.verdict, (self.out / good.log).read_text()), ("passed", "fine\n"))

    def test_figures_that_are_half_written_or_missing_fail_a_step(self) -> None:
        for code in (self.leaving('{"rows": [{"seq'), "pass"):
            result = self.play(self.step("s", code))
            self.assertEqual((result.verdict, result.figures), ("failed: it left no figures.json", None))

    def test_figures_of_an_earlier_run_are_none_of_this(self) -> None:
        self.figures.write_text('{"rows": []}')
        self.assertIsNone(self.play(self.step("s", "raise SystemExit(1)")).figures)

    def test_a_step_that_hangs_ends_at_its_limit(self) -> None:
        result = self.play(self.step("s", "import time; time.sleep(60)", seconds=5.0))
        self.assertEqual(result.verdict, "failed: not done after 5 s")
        self.assertLess(result.seconds, 20)

    def test_a_step_for_which_no_time_is_left_is_not_run(self) -> None:
        result = run.play(self.step("s", "pass"), {}, self.out, time.monotonic() + 1)
        self.assertEqual(result.verdict, "not run: no time is left")

    def test_the_report_is_written_whatever_became_of_the_steps(self) -> None:
        (self.out / "worker.log").write_text(f"WARN {goals.FELL_BACK}\n")
        results = [run.Result("generate", "failed: exit code 1", 1.0, "generate.log", None)]
        run.report(self.out, results, {"device": "none", "bytes_per_s": 1.0, "proves_a_gpu": False})
        content = json.loads((self.out / "report.json").read_text())
        self.assertEqual({goal["verdict"] for goal in content["goals"]}, {"not measured"})
        self.assertEqual(content["kernels_not_used"], [f"worker.log: WARN {goals.FELL_BACK}"])
        self.assertEqual(content["steps"][0]["verdict"], "failed: exit code 1")


class Model(unittest.TestCase):
    def test_the_header_names_all_tensors_without_gaps(self) -> None:
        for shape in (model.QWEN3_06B, model.SMALL):
            content = model.header(shape)
            (length,) = struct.unpack("<Q", content[:8])
            self.assertEqual((len(content), length % 8), (8 + length, 0))
            fields = json.loads(content[8:])
            del fields["__metadata__"]
            end = 0
            for field in fields.values():
                begin, stop = field["data_offsets"]
                self.assertEqual(begin, end)
                end = stop
            self.assertEqual(len(fields), 2 + 11 * shape["num_hidden_layers"])

    def test_the_shape_is_that_of_qwen3_with_as_many_weights(self) -> None:
        (length,) = struct.unpack("<Q", model.header(model.QWEN3_06B)[:8])
        fields = json.loads(model.header(model.QWEN3_06B)[8:8 + length])
        self.assertEqual(max(field["data_offsets"][1] for name, field in fields.items() if name[0] != "_"), 2 * 596_049_920)
        self.assertNotIn("lm_head.weight", fields)


if __name__ == "__main__":
    unittest.main()
