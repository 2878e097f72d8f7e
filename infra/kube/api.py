"""The API of a Kubernetes server over HTTPS, with the standard library alone: requests, and watches that begin again."""

import http.client
import json
import ssl
import threading
import time
import urllib.parse
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Iterator

# One answer; a watch lives longer and is begun again by the client.
TIMEOUT_S = 20
WATCH_S = 300
NOT_FOUND, CONFLICT = 404, 409
MERGE = "application/strategic-merge-patch+json"


class Refused(Exception):
    """The server refuses a request."""

    def __init__(self, status: int, message: str):
        super().__init__(f"{status}: {message}")
        self.status = status


@dataclass
class Api:
    """A server, and who asks it."""

    host: str
    port: int
    authority: Path
    token: str

    def open(self, method: str, path: str, body: Any, kind: str, timeout: float) -> http.client.HTTPResponse:
        context = ssl.create_default_context(cafile=str(self.authority))
        connection = http.client.HTTPSConnection(self.host, self.port, timeout=timeout, context=context)
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": kind, "Accept": "application/json"}
        connection.request(method, path, None if body is None else json.dumps(body), headers)
        answer = connection.getresponse()
        if answer.status >= 400:
            text = answer.read().decode(errors="replace")
            connection.close()
            try:
                text = json.loads(text)["message"]
            except (ValueError, KeyError, TypeError):
                pass
            raise Refused(answer.status, f"{method} {path}: {text}")
        return answer

    def ask(self, method: str, path: str, body: Any = None, kind: str = "application/json") -> Any:
        """One request; the answer as JSON."""
        with self.open(method, path, body, kind, TIMEOUT_S) as answer:
            return json.loads(answer.read())

    def items(self, path: str) -> list[Any]:
        """The members of a list."""
        return self.ask("GET", path)["items"]

    def watch(self, path: str, ended: threading.Event) -> Iterator[tuple[str, Any]]:
        """Everything at ``path`` and each change: (ADDED | MODIFIED | DELETED | SYNCED, object).

        A list comes first, as ADDED; then SYNCED with the uids that exist, so that the caller notices what went while no
        watch was open. Ends with ``ended``."""
        mark = "&" if "?" in path else "?"
        while not ended.is_set():
            try:
                listed = self.ask("GET", path)
                yield from (("ADDED", each) for each in listed["items"])
                yield "SYNCED", {each["metadata"]["uid"] for each in listed["items"]}
                version = listed["metadata"]["resourceVersion"]
                query = urllib.parse.urlencode({"watch": 1, "resourceVersion": version, "timeoutSeconds": WATCH_S})
                with self.open("GET", f"{path}{mark}{query}", None, "application/json", WATCH_S + TIMEOUT_S) as answer:
                    for line in answer:
                        event = json.loads(line)
                        if event["type"] == "ERROR":
                            break
                        yield event["type"], event["object"]
            except (OSError, http.client.HTTPException, Refused, ValueError) as error:
                if not ended.is_set():
                    print(f"watch {path}: {error!r}; it begins again", flush=True)
                    time.sleep(0.5)
