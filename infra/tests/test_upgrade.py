"""Coordinators and workers are replaced one after another while a run goes on, as infra/runbook.md describes an upgrade.

MILLRACE_OLD_BIN names the folder of the former version's programs; without it both versions are the same, so that only the
procedure is tried."""

import os
import pathlib
import unittest

import live


def old(name):
    folder = os.environ.get("MILLRACE_OLD_BIN")
    return str(pathlib.Path(folder, name)) if folder else None


@live.needs("millrace", "millrace-worker", "nats-server")
class Upgrade(unittest.TestCase):
    def test_nothing_is_lost_when_each_process_is_replaced_in_turn(self):
        with live.Fleet() as fleet:
            coordinators = {name: fleet.coordinator(name, old("millrace")) for name in ("coordinator-0", "coordinator-1")}
            workers = [fleet.worker(binary=old("millrace-worker"), name=f"old-{number}") for number in range(2)]
            fleet.submit("upgrade", 150)
            advance = lambda: fleet.status("upgrade")["version"]
            live.wait_for("it runs", lambda: advance() >= 5)
            # Workers first: a new worker understands an old coordinator's tasks.
            for number, worker in enumerate(workers):
                before = advance()
                fleet.worker(name=f"new-{number}")
                worker.stop()
                self.assertEqual(worker.child.returncode, 0)
                live.wait_for("it goes on", lambda: advance() > before)
            for name, coordinator in coordinators.items():
                before = advance()
                coordinator.stop()
                self.assertEqual(coordinator.child.returncode, 0)
                fleet.coordinator(name)
                live.wait_for("it goes on", lambda: advance() > before)
            live.wait_for("the run ends", lambda: fleet.status("upgrade")["state"] == "finished")
            self.assertEqual(advance(), 150)
            ledger = fleet.millrace("ledger", "upgrade", "--audit")
            self.assertIn("balanced", ledger.lower(), ledger)
            books = fleet.status("upgrade")["ledger"]
            self.assertEqual(books["dropped"].get("failed", 0), 0, books)
            self.assertEqual(books["in_flight"], 0, books)


if __name__ == "__main__":
    unittest.main()
