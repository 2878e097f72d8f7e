"""Probes of a container by HTTP, with Kubernetes' meaning: startup first; then readiness, and liveness."""

import http.client
import threading
import time

from container import Unknown

DEFAULTS = {"initialDelaySeconds": 0, "periodSeconds": 10, "timeoutSeconds": 1, "failureThreshold": 3,
            "successThreshold": 1}


class Probe:
    """One probe. ``good`` is its verdict: ``None`` until there is one."""

    def __init__(self, spec: dict, address: str, ports: dict[str, int]):
        if set(spec) - set(DEFAULTS) != {"httpGet"}:
            raise Unknown(f"probe {sorted(spec)}")
        self.settings = {key: spec.get(key, value) for key, value in DEFAULTS.items()}
        target = spec["httpGet"]
        self.address, self.path = address, target.get("path", "/")
        self.port = ports.get(target["port"], target["port"])
        self.good: bool | None = None
        self.successes = self.failures = 0

    def ask(self) -> bool:
        connection = http.client.HTTPConnection(self.address, self.port, timeout=self.settings["timeoutSeconds"])
        try:
            connection.request("GET", self.path)
            return 200 <= connection.getresponse().status < 400
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    def look(self) -> None:
        """Asks once, and counts."""
        if self.ask():
            self.successes, self.failures = self.successes + 1, 0
            if self.successes >= self.settings["successThreshold"]:
                self.good = True
        else:
            self.successes, self.failures = 0, self.failures + 1
            if self.failures >= self.settings["failureThreshold"]:
                self.good = False


class Probes:
    """All probes of one start of a container. They end with it."""

    def __init__(self, spec: dict, address: str, ended: threading.Event):
        ports = {port["name"]: port["containerPort"] for port in spec.get("ports") or [] if "name" in port}
        make = lambda name: Probe(spec[name], address, ports) if name in spec else None  # noqa: E731
        self.startup, self.readiness, self.liveness = make("startupProbe"), make("readinessProbe"), make("livenessProbe")
        self.ended = ended
        self.over = threading.Event()
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        if not self._repeat(self.startup, lambda probe: probe.good is not None) or not self.started:
            return
        for probe in (self.readiness, self.liveness):
            if probe:
                threading.Thread(target=self._repeat, args=(probe, lambda _: False), daemon=True).start()

    def _repeat(self, probe: Probe | None, enough) -> bool:
        """Looks again and again. False if the container ended before it was enough."""
        if probe is None:
            return True
        time.sleep(probe.settings["initialDelaySeconds"])
        while not self.ended.is_set() and not self.over.is_set():
            probe.look()
            if enough(probe):
                return True
            self.over.wait(probe.settings["periodSeconds"])
        return False

    @property
    def started(self) -> bool:
        return self.startup is None or self.startup.good is True

    @property
    def ready(self) -> bool:
        return self.started and (self.readiness is None or self.readiness.good is True)

    @property
    def failed(self) -> str:
        """The probe by whose verdict the container is to be restarted; empty while there is none."""
        if self.startup is not None and self.startup.good is False:
            return "startupProbe"
        return "livenessProbe" if self.liveness is not None and self.liveness.good is False else ""
