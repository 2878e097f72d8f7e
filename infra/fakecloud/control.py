"""The control port: what the owner of the hardware can do, and no customer.

    GET  /state                              machines, their processes, groups, the journal
    POST /spot?instance=i-…&seconds=120      interruption notice; the machine ends after it
    POST /rebalance?instance=i-…             rebalance recommendation
    POST /kill?instance=i-…                  the machine is gone, without notice
    POST /freeze?instance=i-…&process=NAME   its processes of this name hang
"""

import json
import threading
import time
import urllib.parse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import instances
import journal
import lifecycle
from metadata import stamp


def state() -> dict[str, object]:
    """Everything. A group is looked at before the machines: each member that it has is then among them."""
    groups = {group.name: {"desired": group.desired_capacity, "min": group.min_size, "max": group.max_size,
                           "members": {member.instance.id: member.lifecycle_state for member in group.instance_states}}
              for group in lifecycle.all_groups()}
    machines = {}
    for machine in list(instances.EVER):
        rc = machine.process.poll() if machine.process else None
        machines[machine.id] = {
            "group": machine.group, "address": machine.address, "zone": machine.zone, "spot": machine.spot,
            "type": machine.type, "target": machine.target_state, "rc": rc, "ended": machine.ended.is_set(),
            "name": machine.tags().get("Name"), "folder": str(machine.folder),
            "processes": sorted(machine.processes().values()) if machine.process and rc is None else [],
        }
    return {"machines": machines, "groups": groups, "journal": journal.entries()}


class Handler(BaseHTTPRequestHandler):
    """One request."""

    def log_message(self, *_: object) -> None:
        """The journal has what counts."""

    def answer(self, code: int, content: object) -> None:
        body = json.dumps(content).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:  # pylint: disable=invalid-name
        self.answer(200, state()) if self.path == "/state" else self.answer(404, {})

    def do_POST(self) -> None:  # pylint: disable=invalid-name
        url = urllib.parse.urlparse(self.path)
        asked = dict(urllib.parse.parse_qsl(url.query))
        machine = instances.MACHINES.get(asked.get("instance", ""))
        if machine is None:
            return self.answer(404, {"error": f"no running instance {asked.get('instance')!r}"})
        if url.path == "/spot":
            if not machine.spot:
                return self.answer(409, {"error": f"{machine.id} is no spot instance"})
            instances.interrupt(machine, float(asked.get("seconds", 120)))
        elif url.path == "/rebalance":
            machine.rebalance = stamp(time.time())
            journal.log("rebalance", id=machine.id)
        elif url.path == "/kill":
            journal.log("killed", id=machine.id)
            instances.end(machine.id, orderly=False)
        elif url.path == "/freeze":
            frozen = machine.freeze(asked.get("process", "millrace-worker"))
            journal.log("frozen", id=machine.id, processes=len(frozen))
            return self.answer(200 if frozen else 404, {"frozen": len(frozen)})
        else:
            return self.answer(404, {"error": f"no such action {url.path}"})
        return self.answer(200, {})


def serve(address: str, port: int) -> None:
    server = ThreadingHTTPServer((address, port), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
