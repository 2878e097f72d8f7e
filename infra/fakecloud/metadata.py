"""The instance metadata service, version 2 alone: each machine has one, at 169.254.169.254 of its own network."""

import json
import secrets
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Callable

if TYPE_CHECKING:
    import socket

    from machines import Machine

META = "/latest/meta-data/"


def stamp(unix: float) -> str:
    """A moment as AWS writes it."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(unix))


def table(machine: "Machine", credentials: Callable[[], dict[str, str] | None]) -> dict[str, str]:
    """All paths with their content."""
    found = {
        "instance-id": machine.id,
        "instance-type": machine.type,
        "instance-life-cycle": "spot" if machine.spot else "on-demand",
        "local-ipv4": machine.address,
        "local-hostname": machine.hostname,
        "hostname": machine.hostname,
        "placement/availability-zone": machine.zone,
        "placement/region": machine.zone[:-1],
        "services/domain": "amazonaws.com",
    }
    if machine.group:
        found["autoscaling/target-lifecycle-state"] = machine.target_state
    for key, value in machine.tags().items():
        found[f"tags/instance/{key}"] = value
    if machine.action:
        found["spot/instance-action"] = json.dumps(machine.action)
        found["spot/termination-time"] = machine.action["time"]
    if machine.rebalance:
        found["events/recommendations/rebalance"] = json.dumps({"noticeTime": machine.rebalance})
    answer = {META + path: text for path, text in found.items()}
    if machine.role and (keys := credentials()):
        answer[f"{META}iam/security-credentials/{machine.role}"] = json.dumps(keys)
        answer[f"{META}iam/security-credentials"] = machine.role
    document = {"instanceId": machine.id, "instanceType": machine.type, "region": machine.zone[:-1],
                "availabilityZone": machine.zone, "privateIp": machine.address, "imageId": machine.image}
    answer["/latest/dynamic/instance-identity/document"] = json.dumps(document)
    if machine.user_data:
        answer["/latest/user-data"] = ""
    return answer


class Handler(BaseHTTPRequestHandler):
    """One request. `machine`, `tokens` and `credentials` are the server's."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        """Nothing: workers ask every few seconds."""

    def answer(self, code: int, body: bytes = b"", headers: dict[str, str] | None = None) -> None:
        self.send_response(code)
        self.send_header("Content-Type", "text/plain")
        self.send_header("Content-Length", str(len(body)))
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def do_PUT(self) -> None:  # pylint: disable=invalid-name
        ttl = self.headers.get("X-aws-ec2-metadata-token-ttl-seconds", "")
        if self.path != "/latest/api/token":
            return self.answer(404)
        if not ttl.isdigit() or not 1 <= int(ttl) <= 21600:
            return self.answer(400)
        token = secrets.token_urlsafe(32)
        self.server.tokens[token] = time.monotonic() + int(ttl)
        return self.answer(200, token.encode(), {"X-aws-ec2-metadata-token-ttl-seconds": ttl})

    def do_GET(self) -> None:  # pylint: disable=invalid-name
        token = self.headers.get("X-aws-ec2-metadata-token", "")
        if self.server.tokens.get(token, 0) < time.monotonic():
            return self.answer(401)
        paths = table(self.server.machine, self.server.credentials)
        path = self.path.rstrip("/")
        if path == "/latest/user-data" and path in paths:
            return self.answer(200, self.server.machine.user_data)
        if path in paths:
            return self.answer(200, paths[path].encode())
        # A folder lists what is in it.
        below = {rest[len(path) + 1:] for rest in paths if rest.startswith(f"{path}/")}
        names = sorted({f"{rest.split('/')[0]}/" if "/" in rest else rest for rest in below})
        return self.answer(200, "\n".join(names).encode()) if names else self.answer(404)


class MetadataServer(ThreadingHTTPServer):
    """Serves one machine on the socket that the machine opened."""

    daemon_threads = True

    def __init__(self, machine: "Machine", listener: "socket.socket",
                 credentials: Callable[[], dict[str, str] | None]):
        super().__init__(("", 0), Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = listener
        self.machine, self.credentials, self.tokens = machine, credentials, {}
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True).start()

    def handle_error(self, *_: object) -> None:
        """A machine that ends in the middle of a request is none of ours."""

    def end(self) -> None:
        self.shutdown()
        self.server_close()
