"""A run on environments of another package that have every fault, by the real programs: it ends, and its books balance."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

import tiny_model
from conformance import GAMES, HERE, PACKAGE, ROOT

RUN = """
name = "{name}"
steps = {steps}
rewards = [{{ rule = "env_return" }}]
[model]
kind = "hugging_face"
path = "{model}"
context = 1024
[environment]
name = "custom"
pool = "{pool}"
max_turns = 2
prompt_tokens = 400
settings = {settings}
[rollout]
groups_per_step = 4
group_size = 4
max_new_tokens = 4
[algorithm]
learning_rate = 1e-4
[evaluate]
prompts = 0
"""
FAULTS = {
    "raise": "RuntimeError: the board is broken",
    "exit": "SystemExit: the board is gone",
    "die": "",
    "sleep": "no answer within 1 s; it hung here",
    "nan": "reward=nan is not finite",
    "text_reward": "reward='1.0' is no number",
    "no_text": "is a list and no text",
    "no_tuple": "cannot unpack non-iterable NoneType",
}


class Run(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="millrace-envs.")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.model = tiny_model.make(ROOT / "target/models/smollm2-135m-instruct", self.folder / "model")

    def up(self, name, program, **changes):
        """Runs `millrace up`; its report and all logs."""
        file, place = self.folder / f"{name}.toml", self.folder / name
        file.write_text(RUN.format(name=name, model=self.model, **changes))
        command = [ROOT / "target/release/millrace", "up", file, "--dir", place, "--exec"]
        exec_ = f"env PYTHONPATH={PACKAGE} {GAMES} -W ignore {program}"
        path = f"{ROOT / '.venv/bin'}{os.pathsep}{os.environ['PATH']}"
        ran = subprocess.run([*command, exec_], env={**os.environ, "PATH": path}, capture_output=True, text=True, timeout=600)
        logs = "".join(log.read_text(errors="replace") for log in (place / "logs").glob("*.log"))
        self.assertEqual(ran.returncode, 0, ran.stdout + ran.stderr)
        report = json.loads((place / "report.json").read_text())
        self.assertTrue(report["balanced"] and report["audited"], report)
        return report, logs

    def test_each_fault_is_a_failure_and_the_run_goes_on(self):
        counted = self.folder / "counted"
        counted.mkdir()
        program = f"{HERE / 'faults.py'} {counted} 2"
        report, logs = self.up("faults", program, steps=3, pool="gem", settings='{ game = "faulty" }')
        self.assertEqual((report["final_version"], report["ledger"]["trained"]), (3, 48))
        self.assertEqual({file.name.rstrip("01") for file in counted.iterdir()}, set(FAULTS))
        for fault, words in FAULTS.items():
            self.assertIn(words, logs, fault)
        # Each was some rollout's end, by name and not by a reward; a death is asked again.
        failed = report["ledger"]["dropped"]["failed"]
        self.assertTrue(len(FAULTS) - 2 <= failed <= 2 * (len(FAULTS) - 1), report["ledger"])

    def test_a_run_on_questions_of_reasoning_gym(self):
        settings = '{ dataset = "chain_sum" }'
        report, _ = self.up("sums", "-m millrace.adapters reasoning_gym", steps=2, pool="reasoning_gym", settings=settings)
        self.assertEqual((report["final_version"], report["ledger"]["trained"]), (2, 32))
        self.assertEqual(report["ledger"]["dropped"].get("failed", 0), 0)


if __name__ == "__main__":
    sys.exit(not unittest.main(exit=False, verbosity=2).result.wasSuccessful())
