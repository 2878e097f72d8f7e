"""The runbook has a section for each alert and no other, and its commands exist."""

import re
import subprocess
import unittest

import yaml

import live

RUNBOOK = (live.ROOT / "infra/runbook.md").read_text()


def commands(program):
    """The subcommands that the runbook gives of a program: ("stream", "report")."""
    spans = re.findall(r"`([^`]+)`", RUNBOOK.replace("\n", " ")) + re.findall(r"^    (.*)$", RUNBOOK, re.M)
    found = set()
    for span in spans:
        words = span.split()
        if words and words[0] == program and len(words) > 1:
            found.add(tuple(word for word in words[1:4] if re.fullmatch(r"[a-z][a-z-]*", word)))
    return found - {()}


class Sections(unittest.TestCase):
    def test_each_alert_has_a_section_and_each_section_an_alert(self):
        groups = yaml.safe_load((live.ROOT / "infra/prometheus/alerts.yml").read_text())["groups"]
        alerts = [rule["alert"] for group in groups for rule in group["rules"] if "alert" in rule]
        self.assertEqual(alerts, re.findall(r"^### (\w+)$", RUNBOOK, re.M))

    def test_a_section_says_how_to_confirm_and_what_to_do(self):
        for section in re.split(r"^### ", RUNBOOK.split("## Upgrade")[0], flags=re.M)[1:]:
            with self.subTest(section.split()[0]):
                self.assertRegex(section, r"\n(Confirm: |Confirm and do: )")
                self.assertRegex(section, r"\n(Do: |Confirm and do: )")

    def test_links_lead_to_headings(self):
        anchors = {re.sub(r"[^a-z0-9 -]", "", line.lower()).replace(" ", "-")
                   for line in re.findall(r"^#+ (.*)$", RUNBOOK, re.M)}
        for target in re.findall(r"\]\(#([^)]+)\)", RUNBOOK.replace("\n", " ")):
            self.assertIn(target, anchors)


class Commands(unittest.TestCase):
    @live.needs("millrace")
    def test_commands_of_millrace_exist(self):
        self.assertGreater(len(commands("millrace")), 8)
        for words in commands("millrace"):
            with self.subTest(words):
                done = subprocess.run([live.program("millrace"), *words, "--help"], capture_output=True, text=True, timeout=30)
                self.assertEqual(done.returncode, 0, done.stderr)

    @live.needs("nats")
    def test_commands_of_nats_exist(self):
        self.assertGreater(len(commands("nats")), 5)
        for words in commands("nats"):
            with self.subTest(words):
                done = subprocess.run([live.program("nats"), *words, "--help"], capture_output=True, text=True, timeout=30)
                # An unknown command gets the help of the group, whose usage has other words.
                usage = next((line for line in (done.stdout + done.stderr).splitlines() if "usage:" in line), "")
                self.assertRegex(usage, "usage: nats " + " ".join(words) + r"( |$)")

    @live.needs("nats")
    def test_options_of_nats_exist(self):
        for words, option in ((["stream", "edit"], "--max-bytes"), (["stream", "purge"], "--subject")):
            self.assertIn(option, RUNBOOK)
            done = subprocess.run([live.program("nats"), *words, "--help"], capture_output=True, text=True, timeout=30)
            self.assertIn(option, done.stdout + done.stderr)


if __name__ == "__main__":
    unittest.main()
