"""The chart renders what was reviewed, refuses what cannot be, and its pods are as guarded as it promises.

    python -m unittest discover --start-directory infra/chart/tests        UPDATE=1 writes the golden files afresh

`tests/values/*.yaml` render to `tests/golden/*.yaml`. Each of `tests/refused/*.yaml`, over the values `minimal`, must fail
with the message of its first line.
"""

import json
import os
import pathlib
import re
import subprocess
import tempfile
import tomllib
import unittest

import yaml

import reach
import seccomp

TESTS = pathlib.Path(__file__).resolve().parent
CHART = TESTS.parent
ROOT = CHART.parent.parent
TOOLS = ROOT / "target/tools"
HELM = TOOLS / "helm"
KUBECONFORM = TOOLS / "kubeconform"
SCHEMAS = TOOLS / "kubeschemas"
PROGRAM = pathlib.Path(os.environ.get("MILLRACE_BIN") or ROOT / "target/release") / "millrace"
SANDBOX = PROGRAM.with_name("millrace-sandbox")
CASES = sorted(path.stem for path in (TESTS / "values").glob("*.yaml"))


def helm(*arguments):
    return subprocess.run([HELM, *arguments], capture_output=True, text=True, timeout=60)


def render(*values):
    files = [word for path in values for word in ("--values", path)]
    return helm("template", "rl", CHART, "--namespace", "ml", "--kube-version", "1.34.4", *files)


def manifests(case):
    rendered = render(TESTS / f"values/{case}.yaml")
    if rendered.returncode:
        raise AssertionError(rendered.stderr)
    return [manifest for manifest in yaml.safe_load_all(rendered.stdout) if manifest]


def of_kind(case, *kinds):
    return [manifest for manifest in manifests(case) if manifest["kind"] in kinds]


def workloads(case):
    return of_kind(case, "Deployment", "StatefulSet")


def sources(*folders):
    paths = (path for folder in folders for path in (ROOT / folder).rglob("*.rs"))
    return "\n".join(path.read_text() for path in paths)


@unittest.skipUnless(HELM.exists(), "no target/tools/helm; infra/dev/checks.sh makes it")
class Renders(unittest.TestCase):
    maxDiff = 4000

    def test_the_chart_passes_lint(self):
        for case in CASES:
            with self.subTest(case):
                done = helm("lint", CHART, "--strict", "--values", TESTS / f"values/{case}.yaml")
                self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_renders_are_those_that_were_reviewed(self):
        for case in CASES:
            with self.subTest(case):
                done = render(TESTS / f"values/{case}.yaml")
                self.assertEqual(done.returncode, 0, done.stderr)
                golden = TESTS / f"golden/{case}.yaml"
                if os.environ.get("UPDATE"):
                    golden.write_text(done.stdout)
                self.assertEqual(done.stdout, golden.read_text(), "UPDATE=1 writes the golden files afresh")

    def test_every_golden_file_has_its_values(self):
        self.assertEqual(CASES, sorted(path.stem for path in (TESTS / "golden").glob("*.yaml")))

    def test_impossible_values_are_refused_with_the_field_and_the_remedy(self):
        refused = sorted((TESTS / "refused").glob("*.yaml"))
        self.assertGreater(len(refused), 15)
        for path in refused:
            with self.subTest(path.stem):
                message = path.read_text().splitlines()[0].removeprefix("# ")
                done = render(TESTS / "values/minimal.yaml", path)
                self.assertNotEqual(done.returncode, 0, "it was rendered")
                self.assertIn(message, done.stderr)

    @unittest.skipUnless(KUBECONFORM.exists() and SCHEMAS.is_dir(),
                         "no target/tools/kubeconform or kubeschemas; infra/dev/checks.sh makes them")
    def test_manifests_are_what_the_api_and_keda_define(self):
        where = f"{SCHEMAS}/{{{{ .ResourceKind }}}}{{{{ .KindSuffix }}}}.json"
        command = [KUBECONFORM, "-strict", "-summary", "-schema-location", where]
        for case in CASES:
            with self.subTest(case):
                rendered = render(TESTS / f"values/{case}.yaml").stdout
                done = subprocess.run(command, input=rendered, capture_output=True, text=True, timeout=60)
                self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
                self.assertIn("Skipped: 0", done.stdout)
                # The schemas refuse what the API does not know.
                wrong = rendered.replace("terminationGracePeriodSeconds", "terminationGracePeriod", 1)
                done = subprocess.run(command, input=wrong, capture_output=True, text=True, timeout=60)
                self.assertNotEqual(done.returncode, 0)


@unittest.skipUnless(HELM.exists(), "no target/tools/helm; infra/dev/checks.sh makes it")
class Guards(unittest.TestCase):
    def pods(self):
        for case in CASES:
            for workload in workloads(case):
                yield case, workload["metadata"]["name"], workload["spec"]["template"]["spec"]

    def test_pods_meet_the_restricted_pod_security_standard(self):
        for case, name, pod in self.pods():
            with self.subTest(case=case, name=name):
                context = pod["securityContext"]
                self.assertTrue(context["runAsNonRoot"])
                self.assertGreater(context["runAsUser"], 0)
                self.assertIn(context["seccompProfile"]["type"], ["RuntimeDefault", "Localhost"])
                self.assertFalse(pod["automountServiceAccountToken"])
                for field in ("hostNetwork", "hostPID", "hostIPC"):
                    self.assertNotIn(field, pod)
                for container in pod["containers"]:
                    guard = container["securityContext"]
                    self.assertFalse(guard["allowPrivilegeEscalation"])
                    self.assertEqual(guard["capabilities"], {"drop": ["ALL"]})
                    self.assertTrue(guard["readOnlyRootFilesystem"])
                    self.assertIn("memory", container["resources"]["limits"])
                for volume in pod["volumes"]:
                    self.assertNotIn("hostPath", volume)

    def test_pods_with_sandboxes_have_the_profiles_that_the_chart_has(self):
        contexts = {name: pod["securityContext"] for case, name, pod in self.pods() if case == "production"}
        own = contexts.pop("rl-millrace-reward")
        seccomp_profile = pathlib.PurePath(own["seccompProfile"]["localhostProfile"])
        self.assertTrue((CHART / "files" / seccomp_profile.name).is_file())
        self.assertEqual(own["appArmorProfile"], {"type": "Localhost", "localhostProfile": "millrace-sandbox"})
        self.assertIn("\nprofile millrace-sandbox ", (CHART / "files/millrace-sandbox.apparmor").read_text())
        for name, context in contexts.items():
            self.assertNotIn("appArmorProfile", context, name)

    @unittest.skipUnless(SANDBOX.exists() and seccomp.NUMBERS.exists() and os.uname().machine == "x86_64",
                         "no millrace-sandbox or no list of system calls; `make programs`, on x86-64")
    def test_sandboxes_run_under_the_seccomp_profile(self):
        limits = {"wall_ms": 10_000, "cpu_ms": 5_000, "memory_bytes": 1 << 29, "disk_bytes": 1 << 26,
                  "output_bytes": 1 << 20, "processes": 16}
        job = json.dumps({"files": [], "runs": [{"command": ["/bin/echo", "hello"], "stdin": ""}], "limits": limits,
                          "read": [], "may_lack": ["landlock"]})
        permitted = seccomp.names(CHART / "files/millrace-sandbox.json")
        last = seccomp.run_under(permitted, [SANDBOX], job)[-1]
        self.assertEqual((last["ran"]["end"], last["ran"]["stdout"]), ({"exit": 0}, "hello\n"), last)
        for name in ("unshare", "mount", "pivot_root", "umount2"):
            self.assertIn("failed", seccomp.run_under(permitted - {name}, [SANDBOX], job)[-1], name)
        self.assertEqual(permitted & {"bpf", "io_uring_setup", "keyctl", "perf_event_open", "ptrace", "reboot"}, set())

    def test_a_pod_ends_later_than_its_grace(self):
        found = 0
        for case, name, pod in self.pods():
            variables = {entry["name"]: entry.get("value") for entry in pod["containers"][0]["env"]}
            if "MILLRACE_GRACE" in variables:
                found += 1
                margin = pod["terminationGracePeriodSeconds"] - float(variables["MILLRACE_GRACE"])
                self.assertGreaterEqual(margin, 20, f"{case} {name}")
        self.assertGreater(found, 5)

    def test_an_engine_outlives_the_drain_of_its_worker(self):
        pods = {name: pod for case, name, pod in self.pods() if case == "production"}
        pod = pods["rl-millrace-generate"]
        self.assertEqual([container["name"] for container in pod["containers"]], ["worker"])
        # The kubelet ends such containers last, in the reverse order of their start.
        self.assertEqual([(c["name"], c["restartPolicy"]) for c in pod["initContainers"]], [("engine", "Always")])

    def test_secrets_are_references(self):
        for case in CASES:
            self.assertEqual(of_kind(case, "Secret"), [])
        for case, name, pod in self.pods():
            for container in pod["containers"]:
                for variable in container.get("env", []):
                    secret = re.search(r"SECRET|TOKEN|PASSWORD|ACCESS_KEY", variable["name"])
                    self.assertFalse(secret and "value" in variable, f"{case} {name} {variable['name']}")

    def test_every_workload_has_a_budget_of_its_own(self):
        for case in CASES:
            budgets = [budget["spec"]["selector"]["matchLabels"] for budget in of_kind(case, "PodDisruptionBudget")]
            for workload in workloads(case):
                labels = workload["spec"]["template"]["metadata"]["labels"]
                own = [budget for budget in budgets if budget.items() <= labels.items()]
                lone = workload["kind"] == "StatefulSet" and workload["spec"]["replicas"] == 1
                self.assertTrue(len(own) == 1 or (lone and not own), f"{case} {workload['metadata']['name']}: {own}")

    def test_selectors_of_workloads_do_not_overlap(self):
        for case in CASES:
            for one in workloads(case):
                for other in workloads(case):
                    selector = one["spec"]["selector"]["matchLabels"]
                    labels = other["spec"]["template"]["metadata"]["labels"]
                    same = one["metadata"]["name"] == other["metadata"]["name"]
                    self.assertEqual(selector.items() <= labels.items(), same)

    def test_pods_reach_what_they_need_and_nothing_else(self):
        pods = {w["metadata"]["name"].removeprefix("rl-millrace-"): w["spec"]["template"]["metadata"]["labels"]
                for w in workloads("production")}
        network = reach.Network(of_kind("production", "NetworkPolicy"), pods, namespace="ml")
        for worker in ("generate", "env", "reward", "gang", "coordinator"):
            self.assertTrue(network.connects(worker, "nats", 4222), worker)
            self.assertFalse(network.connects(worker, "nats", 6222), worker)
            # S3 in two of its ranges, and STS, which gives credentials for a service account's role.
            for address in ("52.219.1.1", "3.5.137.20", "54.239.54.102"):
                self.assertTrue(network.reaches(worker, address, 443), f"{worker} {address}")
            self.assertFalse(network.reaches(worker, "169.254.169.254", 80), worker)
            self.assertFalse(network.reaches(worker, "93.184.216.34", 80), worker)
            self.assertTrue(network.enters(worker, "monitoring", 9090), worker)
            self.assertFalse(network.enters(worker, "default", 9090), worker)
        self.assertTrue(network.connects("nats", "nats", 6222))
        self.assertTrue(network.connects("gang", "gang", 40_123))
        for worker in ("generate", "env", "reward", "coordinator"):
            self.assertFalse(network.connects(worker, "gang", 40_123), worker)
            self.assertFalse(network.connects("gang", worker, 40_123), worker)
        for worker in ("generate", "coordinator", "gang"):
            self.assertTrue(network.reaches_namespace(worker, "monitoring", 4318), worker)
            self.assertFalse(network.reaches_namespace(worker, "default", 4318), worker)
        self.assertTrue(network.enters("coordinator", "keda", 9090))
        self.assertFalse(network.enters("env", "keda", 9090))
        # The API at its own address: what the Service's is replaced by before a policy is judged.
        scaler = reach.Network([policy for policy in of_kind("production", "NetworkPolicy")
                                if policy["metadata"]["name"].endswith("-scaler")], pods, namespace="ml")
        self.assertTrue(scaler.reaches("coordinator", "10.0.17.4", 443))
        self.assertFalse(scaler.reaches("coordinator", "172.20.0.1", 443))
        self.assertTrue(network.reaches("reward", "10.20.0.7", 8000))
        self.assertFalse(network.reaches("env", "10.20.0.7", 8000))

    def test_addresses_without_a_list_exclude_the_metadata_service(self):
        pods = {"env": {w["metadata"]["name"]: w for w in workloads("minimal")}
                ["rl-millrace-env"]["spec"]["template"]["metadata"]["labels"]}
        network = reach.Network(of_kind("minimal", "NetworkPolicy"), pods, namespace="ml")
        self.assertTrue(network.reaches("env", "93.184.216.34", 443))
        self.assertFalse(network.reaches("env", "169.254.169.254", 443))

    def test_a_store_in_the_cluster_is_all_that_is_reached(self):
        pods = {"generate": {w["metadata"]["name"]: w for w in workloads("one-server")}
                ["rl-millrace-generate"]["spec"]["template"]["metadata"]["labels"]}
        network = reach.Network(of_kind("one-server", "NetworkPolicy"), pods, namespace="ml")
        self.assertTrue(network.reaches_namespace("generate", "storage", 8333))
        self.assertFalse(network.reaches("generate", "93.184.216.34", 443))


@unittest.skipUnless(HELM.exists(), "no target/tools/helm; infra/dev/checks.sh makes it")
class Programs(unittest.TestCase):
    """The chart sets only what the programs read."""

    def test_variables_exist(self):
        code = sources("broker", "workers/src")
        known = set(re.findall(r'"((?:MILLRACE|NATS|OTEL)_[A-Z_]+)"', code))
        used = set()
        for case in CASES:
            for workload in workloads(case):
                for entry in workload["spec"]["template"]["spec"]["containers"][0]["env"]:
                    used.add(entry["name"])
        own = {name for name in used if name.startswith(("MILLRACE_", "NATS_", "OTEL_"))}
        self.assertGreater(len(own), 10)
        self.assertEqual(own - known, set())

    @unittest.skipUnless(PROGRAM.exists(), "no millrace program; `make programs` makes it, or MILLRACE_BIN names its folder")
    def test_options_of_the_coordinator_exist(self):
        done = subprocess.run([PROGRAM, "coordinator", "--help"], capture_output=True, text=True, timeout=30)
        known = set(re.findall(r"--[a-z-]+", done.stdout))
        given = {argument.split("=")[0] for case in CASES for workload in workloads(case)
                 for argument in workload["spec"]["template"]["spec"]["containers"][0].get("args", [])}
        self.assertGreaterEqual(given, {"--id", "--replicas", "--ack-wait", "--scale"})
        self.assertEqual(given - known, set())

    def test_stages_are_those_of_the_code(self):
        queued = re.search(r"QUEUED: \[Self; \d\] =\s*\[(.*?)\]", (ROOT / "schemas/src/stage.rs").read_text(), re.S)
        snake = {re.sub(r"(?<!^)(?=[A-Z])", "_", word).lower() for word in re.findall(r"Self::(\w+)", queued[1])}
        schema = json.loads((CHART / "values.schema.json").read_text())
        pattern = schema["definitions"]["pool"]["properties"]["stages"]["items"]["pattern"]
        self.assertEqual(len(snake), 5)
        self.assertEqual(set(re.match(r"\^\(([a-z_|]+)\)", pattern)[1].split("|")), snake)

    def test_the_scaling_file_has_the_pools_that_are_scaled(self):
        config = [c for c in of_kind("production", "ConfigMap") if c["metadata"]["name"].endswith("-scale")]
        scale = tomllib.loads(config[0]["data"]["scale.toml"])
        if PROGRAM.exists():
            with tempfile.NamedTemporaryFile("w", suffix=".toml") as file:
                file.write(config[0]["data"]["scale.toml"])
                file.flush()
                done = subprocess.run([PROGRAM, "scale", "check", file.name], capture_output=True, text=True, timeout=30)
            self.assertEqual(done.returncode, 0, done.stderr)
        pools = {pool["name"]: pool for pool in scale["pool"]}
        self.assertEqual(set(pools), {"env", "generate"})
        self.assertEqual(pools["generate"]["stages"], ["generate"])
        self.assertEqual(pools["generate"]["target"], {"kind": "keda"})
        self.assertEqual(pools["env"]["target"], {"kind": "kubernetes", "namespace": "ml", "name": "rl-millrace-env"})
        objects = {o["metadata"]["name"]: o["spec"] for o in of_kind("production", "ScaledObject")}
        scaled = objects["rl-millrace-generate"]
        self.assertEqual((scaled["minReplicaCount"], scaled["maxReplicaCount"]),
                         (pools["generate"]["min"], pools["generate"]["max"]))
        trigger = scaled["triggers"][0]
        self.assertEqual(trigger["type"], "metrics-api")
        self.assertEqual(trigger["metadata"]["url"], "http://rl-millrace-coordinator.ml.svc:9090/metrics")
        metric, pool = re.fullmatch(r'(\w+){pool="([a-z]+)"}', trigger["metadata"]["valueLocation"]).groups()
        self.assertEqual(pool, "generate")
        self.assertIn(f'"{metric}"', sources("broker/autoscaler"))
        external = of_kind("one-server", "ScaledObject")[0]["spec"]["triggers"][0]
        self.assertEqual(external["type"], "external-push")
        self.assertEqual(external["metadata"], {"scalerAddress": "rl-millrace-coordinator.ml.svc:6000", "pool": "generate"})
        code = (ROOT / "broker/autoscaler/src/external.rs").read_text()
        self.assertIn(f'POOL_KEY: &str = "{list(external["metadata"])[1]}"', code)
        coordinator = next(w for w in workloads("one-server") if w["metadata"]["name"].endswith("-coordinator"))
        container = coordinator["spec"]["template"]["spec"]["containers"][0]
        self.assertIn("--keda-addr=0.0.0.0:6000", container["args"])
        labels = coordinator["spec"]["template"]["metadata"]["labels"]
        network = reach.Network(of_kind("one-server", "NetworkPolicy"), {"coordinator": labels}, namespace="ml")
        self.assertTrue(network.enters("coordinator", "keda", 6000))
        self.assertFalse(network.enters("coordinator", "default", 6000))
        # Nobody else sets the replicas of what is scaled.
        for workload in workloads("production"):
            if workload["metadata"]["name"] in ("rl-millrace-generate", "rl-millrace-env", "rl-millrace-reward"):
                self.assertNotIn("replicas", workload["spec"])


if __name__ == "__main__":
    unittest.main()
