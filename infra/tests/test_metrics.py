"""Alerts and dashboard use metrics that exist: in the code, and on the pages of real processes. The rules fire when they
should."""

import json
import re
import subprocess
import tempfile
import unittest

import yaml

import live
import metrics

PROMETHEUS = metrics.ROOT / "infra/prometheus"
DASHBOARD = metrics.ROOT / "infra/grafana/millrace.json"
PROMTOOL = metrics.ROOT / "target/tools/promtool"
# Exported only once something went wrong, a run has several domains or stored turns, a pool is scaled, traces are on, or
# after minutes.
RARE = {"millrace_trouble", "millrace_object_failures_total", "millrace_command_failures_total", "millrace_run_paused",
        "millrace_leader_handovers_total", "millrace_log_trimmed_entries_total", "millrace_objects_collected_total",
        "millrace_stored_rollouts", "millrace_stored_turns_left", "millrace_groups_from_stored_turns_total",
        "millrace_domain_rollouts_admitted_total", "millrace_domain_rollouts_trained_total",
        "millrace_domain_rollouts_dropped_total", "millrace_domain_reward", "millrace_domain_success",
        "millrace_rollouts_dropped_total", "millrace_scale_desired_workers", "millrace_scale_live_workers",
        "millrace_scale_target_failing", "millrace_scale_replaced_machines_total",
        "millrace_trace_spans_exported_total", "millrace_trace_spans_dropped_total", "millrace_tool_calls_total",
        "millrace_tool_call_microseconds_total"}


def rules():
    groups = yaml.safe_load((PROMETHEUS / "alerts.yml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def panels():
    return [panel for panel in json.loads(DASHBOARD.read_text())["panels"] if panel["type"] != "row"]


def plain(expression):
    """A panel's expression without Grafana's variables."""
    return expression.replace("$__rate_interval", "5m").replace("$namespace", ".*").replace("$run", ".*")


class Names(unittest.TestCase):
    def setUp(self):
        self.known = metrics.exported()
        # What a rule records may be used by another.
        self.recorded = {rule["record"] for rule in rules() if "record" in rule}

    def test_rules_use_metrics_of_the_code(self):
        self.assertGreater(len(self.known), 25, sorted(self.known))
        for rule in rules():
            name = rule.get("alert") or rule["record"]
            expression = re.sub("|".join(map(re.escape, self.recorded)), "recorded", rule["expr"])
            with self.subTest(name):
                self.assertEqual(list(metrics.faults(expression, self.known)), [])
                labels = set().union(*(self.known[metric] for metric in metrics.used(expression)), metrics.OF_TARGETS)
                if "recorded" not in expression:
                    self.assertEqual(metrics.grouped(expression) - labels, set())

    def test_the_dashboard_uses_metrics_of_the_code(self):
        for panel in panels():
            for target in panel["targets"]:
                with self.subTest(panel["title"]):
                    expression = plain(target["expr"])
                    self.assertTrue(metrics.used(expression))
                    self.assertEqual(list(metrics.faults(expression, self.known)), [])
                    legend = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
                    self.assertEqual(legend - metrics.grouped(expression), set())

    def test_the_readme_lists_every_metric_with_its_labels(self):
        text = (PROMETHEUS / "README.md").read_text()
        listed = {name: set(re.findall(r"\w+", labels or ""))
                  for name, labels in re.findall(r"`(millrace_\w+)(?:\{([^}]*)\})?`", text)}
        self.assertEqual(listed, self.known)

    def test_a_metric_or_label_that_does_not_exist_is_found(self):
        self.assertTrue(list(metrics.faults("rate(millrace_stale_total[5m])", self.known)))
        self.assertTrue(list(metrics.faults('millrace_policy_version{stage="generate"}', self.known)))
        self.assertFalse(list(metrics.faults('millrace_policy_version{run="maze"}', self.known)))


class Dashboard(unittest.TestCase):
    def test_panels_have_rows_and_do_not_overlap(self):
        board = json.loads(DASHBOARD.read_text())
        ids = [panel["id"] for panel in board["panels"]]
        self.assertEqual(len(ids), len(set(ids)))
        titles = [panel["title"] for panel in board["panels"] if panel["type"] == "row"]
        for wanted in ("Learning", "Throughput", "Staleness and drops", "Queue", "Workers", "Gang", "Engine"):
            self.assertIn(wanted, titles)
        taken = {}
        for panel in board["panels"]:
            place = panel["gridPos"]
            self.assertLessEqual(place["x"] + place["w"], 24, panel["title"])
            for x in range(place["x"], place["x"] + place["w"]):
                for y in range(place["y"], place["y"] + place["h"]):
                    self.assertIsNone(taken.get((x, y)), f"{panel['title']} lies over {taken.get((x, y))}")
                    taken[x, y] = panel["title"]

    def test_panels_take_the_data_source_that_is_chosen(self):
        for panel in panels():
            for owner in (panel, *panel["targets"]):
                self.assertEqual(owner["datasource"], {"type": "prometheus", "uid": "${datasource}"})


@unittest.skipUnless(PROMTOOL.exists(), "no target/tools/promtool; infra/dev/checks.sh makes it")
class Rules(unittest.TestCase):
    def promtool(self, *arguments, **options):
        return subprocess.run([PROMTOOL, *arguments], capture_output=True, text=True, cwd=PROMETHEUS, timeout=120, **options)

    def test_rules_and_configuration_are_valid(self):
        for arguments in (["check", "rules", "--lint-fatal", "alerts.yml"], ["check", "config", "prometheus.yml"]):
            done = self.promtool(*arguments)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_the_example_for_aws_is_valid(self):
        config = yaml.safe_load((PROMETHEUS / "aws.yml").read_text())
        ports = set()
        for job in config["scrape_configs"]:
            # This promtool is built without AWS: what finds the machines is compared here, the rest by promtool.
            for machines in job.pop("ec2_sd_configs"):
                self.assertLessEqual(machines.keys(), {"region", "port", "filters"})
                ports.add(machines["port"])
                names = {entry["name"] for entry in machines["filters"]}
                self.assertEqual(names, {"tag:millrace:pool", "instance-state-name"})
            for rule in job["relabel_configs"]:
                self.assertNotEqual(rule.get("target_label"), "pool", "the autoscaler's metrics have one")
            job["static_configs"] = [{"targets": ["10.64.0.20:9090"]}]
        rules = (metrics.ROOT / "terraform/modules/network/main.tf").read_text()
        first, last = map(int, re.search(r"from_port +=\s(90\d\d)\n +to_port +=\s(9\d\d\d)", rules).groups())
        self.assertTrue(all(first <= port <= last for port in ports))
        for name in ("fleet", "pool"):
            self.assertIn(f'"millrace:{name}"', (metrics.ROOT / "terraform/modules/worker_pool/main.tf").read_text())
        with tempfile.NamedTemporaryFile("w", suffix=".yml", dir=PROMETHEUS) as file:
            yaml.safe_dump(config, file)
            file.flush()
            done = self.promtool("check", "config", file.name)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_alerts_fire_when_they_should(self):
        done = self.promtool("test", "rules", "alerts_test.yml")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_every_alert_has_a_case_in_which_it_fires(self):
        cases = yaml.safe_load((PROMETHEUS / "alerts_test.yml").read_text())["tests"]
        fires = {test["alertname"] for case in cases for test in case["alert_rule_test"] if test.get("exp_alerts")}
        self.assertEqual({rule["alert"] for rule in rules() if "alert" in rule}, fires)

    def test_expressions_of_the_dashboard_are_valid(self):
        expressions = [plain(target["expr"]) for panel in panels() for target in panel["targets"]]
        listed = [{"record": f"panel:{number}:x", "expr": text} for number, text in enumerate(expressions)]
        text = yaml.safe_dump({"groups": [{"name": "panels", "rules": listed}]})
        done = self.promtool("check", "rules", input=text)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn(f"{len(listed)} rules found", done.stdout + done.stderr)


@live.needs("millrace", "millrace-worker", "nats-server")
class Pages(unittest.TestCase):
    def test_real_processes_export_what_the_code_says(self):
        known = metrics.exported()
        with live.Fleet() as fleet:
            first, second, worker = fleet.coordinator(), fleet.coordinator("coordinator-1"), fleet.worker()
            fleet.submit("pages", 12)
            live.wait_for("the run ends", lambda: fleet.status("pages")["state"] == "finished")
            processes = (first, second, worker)
            # Streams are reported every ten seconds.
            live.wait_for("the log is reported", lambda: re.search(
                r'millrace_stream_messages\{stream="MILLRACE_LOG"\} [1-9]', first.metrics()))
            text = "\n".join(process.metrics() for process in processes)
            seen = {}
            for name, labels in re.findall(r"^(millrace_\w+?)(?:\{(.*)\})? \S+$", text, re.M):
                seen.setdefault(name, set()).update(re.findall(r'(\w+)="', labels))
            self.assertEqual(set(known) - RARE, set(seen) - RARE)
            for name, labels in seen.items():
                self.assertEqual(labels, known[name], name)
            leaders = re.findall(r"^millrace_leader (\d)$", text, re.M)
            self.assertEqual(sorted(leaders), ["0", "1"])
            self.assertEqual(re.findall(r"^millrace_connected (\d)$", text, re.M), ["1", "1", "1"])

            fleet.submit("halts", 100_000)
            live.wait_for("it runs", lambda: fleet.status("halts")["version"] >= 1)
            fleet.millrace("pause", "halts")
            paused = live.wait_for("the pause is reported", lambda: re.search(
                r'^millrace_run_paused\{(.*)\} 1$', first.metrics(), re.M))
            self.assertIn('run="halts"', paused[1])
            self.assertRegex(paused[1], r'reason="[^"]+"')
            fleet.millrace("resume", "halts")
            live.wait_for("it is no longer reported", lambda: re.search(
                r'^millrace_run_paused\{.*run="halts".*\} 0$', first.metrics(), re.M))


if __name__ == "__main__":
    unittest.main()
