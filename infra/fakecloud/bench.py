"""What the test of a fleet's life uses: the cloud, terraform, and the `nats` command, each as a person would use it."""

import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any, Callable

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
# What the provider must be told to use another cloud, and sizes for this computer. Beside that, only what costs
# minutes is changed in the modules.
PROVIDER = """
provider "aws" {
  access_key                  = "AKIAFAKECLOUDADMIN00"
  secret_key                  = "fake"
  s3_use_path_style           = true
  skip_credentials_validation = true
  skip_metadata_api_check     = true
  skip_region_validation      = true

  endpoints { s3 = "%s" }
}

# As many workers as this computer has processors for.
module "gpu" { max = 1 }
module "cpu" { max = 2 }
"""
# The provider watches a lifecycle configuration for a minute before it believes it.
NO_LIFECYCLE = 'resource "aws_s3_bucket_lifecycle_configuration" "this" { count = 0 }\n'


class Failed(Exception):
    """A step did not come to its end."""


class Log:
    """The steps with their times, for people and for terraform/README.md."""

    def __init__(self, path: Path):
        self.path, self.start = path, time.monotonic()
        path.write_text("", encoding="utf-8")

    def say(self, text: str) -> None:
        line = f"{time.monotonic() - self.start:6.1f} s  {text}"
        print(line, flush=True)
        with open(self.path, "a", encoding="utf-8") as file:
            file.write(line + "\n")


def until(what: str, condition: Callable[[], Any], patience: float) -> Any:
    """Waits until the condition gives something."""
    give_up = time.monotonic() + patience
    while True:
        if found := condition():
            return found
        if time.monotonic() > give_up:
            raise Failed(f"waited {patience:.0f} s in vain until {what}")
        time.sleep(0.2)


class Cloud:
    """The fake cloud, and its control port."""

    def __init__(self, folder: Path, image: dict[str, Path], weed: Path):
        self.folder = folder
        words = [f"--image={source}={place}" for place, source in image.items()]
        with open(folder / "cloud.log", "wb") as log:
            self.process = subprocess.Popen([sys.executable, HERE / "serve.py", "--folder", folder / "cloud",
                                             "--weed", weed, *words], stdout=log, stderr=log)
        ready = folder / "cloud/cloud.json"
        until("the cloud is up; see cloud.log", lambda: self.alive() and ready.exists(), 90)
        self.facts = json.loads(ready.read_text(encoding="utf-8"))

    def alive(self) -> bool:
        if self.process.poll() is not None:
            raise Failed("the cloud ended:\n" + (self.folder / "cloud.log").read_text(encoding="utf-8")[-3000:])
        return True

    def state(self) -> dict[str, Any]:
        with urllib.request.urlopen(self.facts["control"] + "/state", timeout=30) as answer:
            return json.load(answer)

    def do(self, action: str, instance: str, **words: Any) -> None:
        query = "&".join(f"{name}={value}" for name, value in {"instance": instance, **words}.items())
        ask = urllib.request.Request(f"{self.facts['control']}/{action}?{query}", method="POST")
        try:
            with urllib.request.urlopen(ask, timeout=30):
                pass
        except urllib.error.HTTPError as error:
            raise Failed(f"{action} of {instance}: {error.read().decode()}") from error

    def members(self, group: str) -> list[str]:
        """The instances of a group that serve."""
        members = self.state()["groups"][group]["members"]
        return [instance for instance, state in members.items() if state == "InService"]

    def running(self, group: str, process: str) -> list[str]:
        """The instances of a group on which such a process runs."""
        state = self.state()
        members = [one for one, how in state["groups"][group]["members"].items() if how == "InService"]
        return [one for one in members if process[:15] in state["machines"][one]["processes"]]

    def journal(self, what: str, instance: str | None = None) -> list[dict[str, Any]]:
        entries = [entry for entry in self.state()["journal"] if entry["what"] == what]
        return [entry for entry in entries if instance in (None, entry.get("id"))]

    def file(self, instance: str, path: str) -> str:
        place = Path(self.state()["machines"][instance]["folder"]) / "root" / path.lstrip("/")
        return place.read_text(encoding="utf-8", errors="replace") if place.exists() else ""

    def console(self, instance: str) -> str:
        path = Path(self.state()["machines"][instance]["folder"]) / "console.log"
        return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""

    def scaling(self) -> Any:
        """A client of the API, as the person who applied."""
        import boto3  # pylint: disable=import-outside-toplevel
        return boto3.client("autoscaling", region_name="us-east-1", endpoint_url=self.facts["AWS_ENDPOINT_URL"],
                            aws_access_key_id="AKIAFAKECLOUDADMIN00", aws_secret_access_key="fake")


class Terraform:
    """An example, in a copy of the modules."""

    def __init__(self, folder: Path, cloud: Cloud, variables: dict[str, str]):
        import shutil  # pylint: disable=import-outside-toplevel
        shutil.copytree(ROOT / "terraform", folder / "terraform", ignore=shutil.ignore_patterns(".terraform*"))
        self.example = folder / "terraform/examples/minimal"
        provider = PROVIDER % cloud.facts["AWS_ENDPOINT_URL_S3"]
        (self.example / "fakecloud_override.tf").write_text(provider, encoding="utf-8")
        (folder / "terraform/modules/artifacts/fakecloud_override.tf").write_text(NO_LIFECYCLE, encoding="utf-8")
        self.variables = [f"-var={name}={value}" for name, value in variables.items()]
        self.environment = {**os.environ, "AWS_ENDPOINT_URL": cloud.facts["AWS_ENDPOINT_URL"], "TF_IN_AUTOMATION": "1",
                            "TF_INPUT": "0", "CHECKPOINT_DISABLE": "1"}
        self.log = folder / "terraform.log"

    def run(self, verb: str, *words: str, good: tuple[int, ...] = (0,)) -> tuple[int, str]:
        variables = self.variables if verb in ("apply", "plan", "destroy") else []
        done = subprocess.run(["terraform", verb, "-no-color", *words, *variables], cwd=self.example, text=True,
                              env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
        with open(self.log, "a", encoding="utf-8") as log:
            log.write(f"\n==== terraform {verb}: {done.returncode}\n{done.stdout}")
        if done.returncode not in good:
            raise Failed(f"terraform {verb} ended with {done.returncode}:\n{done.stdout[-4000:]}")
        return done.returncode, done.stdout

    def output(self, name: str) -> Any:
        done = subprocess.run(["terraform", "output", "-json", name], cwd=self.example, env=self.environment,
                              capture_output=True, text=True, check=True)
        return json.loads(done.stdout)

    def plan_is_empty(self) -> None:
        code, text = self.run("plan", "-detailed-exitcode", good=(0, 2))
        if code:
            changes = [line for line in text.splitlines() if line.lstrip().startswith(("#", "~", "+", "-"))]
            raise Failed("a second plan has changes:\n" + "\n".join(changes[:40]))


class Client:
    """The `nats` command with the context that terraform gives."""

    def __init__(self, folder: Path, context: str, program: str, millrace: Path):
        self.program, self.millrace = program, millrace
        self.environment = {**os.environ, "XDG_CONFIG_HOME": str(folder / "config"), "HOME": str(folder)}
        place = folder / "config/nats/context"
        place.mkdir(parents=True)
        (place / "millrace.json").write_text(context, encoding="utf-8")

    def ask(self, subject: str, content: Any, patience: float = 10) -> Any:
        """The answer; `None` if there is none or it is an error."""
        words = [self.program, "--context", "millrace", "req", "--raw", f"--timeout={patience}s", subject]
        done = subprocess.run([*words, json.dumps(content) if content else ""], env=self.environment,
                              capture_output=True, text=True, check=False)
        try:
            return json.loads(done.stdout) if done.returncode == 0 else None
        except json.JSONDecodeError:
            return None

    def command(self, *words: str, environment: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        """`millrace` with the same context."""
        return subprocess.run([self.millrace, *words, "--context", "millrace"], capture_output=True, text=True,
                              env={**self.environment, **(environment or {})}, check=False)
