"""What happened in the cloud, with times: printed, and kept for the control port."""

import json
import threading
import time

_lock = threading.Lock()
_entries: list[dict[str, object]] = []


def log(what: str, **facts: object) -> None:
    """One line."""
    entry = {"t": round(time.time(), 3), "what": what, **facts}
    with _lock:
        _entries.append(entry)
        print(json.dumps(entry), flush=True)


def entries() -> list[dict[str, object]]:
    """All lines so far."""
    with _lock:
        return list(_entries)
