"""Backup and restore of the streams as infra/runbook.md describes them, on real processes."""

import re
import shutil
import subprocess
import unittest

import live


@live.needs("millrace", "millrace-worker", "nats-server", "nats")
class Restore(unittest.TestCase):
    def lose_everything_but_objects(self, fleet):
        fleet.nats.stop(live.signal.SIGKILL)
        shutil.rmtree(fleet.folder / "streams")
        fleet.start_nats()

    def goes_on_and_balances(self, fleet, run, steps):
        fleet.coordinator()
        fleet.worker()
        live.wait_for("the run ends", lambda: fleet.status(run)["state"] == "finished")
        self.assertEqual(fleet.status(run)["version"], steps)
        ledger = fleet.millrace("ledger", run, "--audit")
        self.assertIn("balanced", ledger.lower(), ledger)

    def test_a_run_goes_on_from_a_backup_taken_at_rest(self):
        with live.Fleet() as fleet:
            coordinator, worker = fleet.coordinator(), fleet.worker()
            fleet.submit("rest", 120)
            live.wait_for("some steps are made", lambda: fleet.status("rest")["version"] >= 10)
            worker.stop()
            coordinator.stop()
            done = fleet.script("infra/nats/backup.sh", fleet.folder / "backup")
            self.assertEqual(done.returncode, 0, done.stderr)
            self.lose_everything_but_objects(fleet)
            done = fleet.script("infra/nats/restore.sh", fleet.folder / "backup")
            self.assertEqual(done.returncode, 0, done.stderr)
            self.goes_on_and_balances(fleet, "rest", 120)

    def test_a_run_goes_on_from_an_older_backup_taken_while_it_ran(self):
        with live.Fleet() as fleet:
            coordinator, worker = fleet.coordinator(), fleet.worker()
            fleet.submit("older", 120)
            live.wait_for("some steps are made", lambda: fleet.status("older")["version"] >= 10)
            done = fleet.script("infra/nats/backup.sh", fleet.folder / "backup")
            self.assertEqual(done.returncode, 0, done.stderr)
            kept = fleet.status("older")["version"]
            live.wait_for("later steps are made", lambda: fleet.status("older")["version"] >= kept + 10)
            worker.stop(live.signal.SIGKILL)
            coordinator.stop(live.signal.SIGKILL)
            self.lose_everything_but_objects(fleet)
            done = fleet.script("infra/nats/restore.sh", fleet.folder / "backup")
            self.assertEqual(done.returncode, 0, done.stderr)
            self.goes_on_and_balances(fleet, "older", 120)

    def guard(self, fleet):
        """Users and TLS on the fleet's server. Returns the environment of each user, by its name."""
        made = fleet.folder / "auth"
        if not made.exists():
            subprocess.run([live.program("millrace"), "init-auth", "--dir", made, "--place", made, "--host", "127.0.0.1",
                            "--combine", "env_step,reward"], check=True, capture_output=True)
        fleet.nats.stop()
        fleet.start_nats(made / "nats-server.conf")
        fleet.url = fleet.url.replace("nats://", "tls://")
        ca = str(made / "tls/ca.pem")
        return lambda user: {"MILLRACE_NATS_NKEY": str(made / f"keys/{user}.nk"), "MILLRACE_NATS_TLS_CA": ca,
                             "NATS_NKEY": str(made / f"keys/{user}.nk"), "NATS_CA": ca}

    def test_a_guarded_server_is_backed_up_and_restored_by_the_operator(self):
        with live.Fleet() as fleet:
            of = self.guard(fleet)
            command = [live.program("millrace"), "coordinator", "--id", "coordinator-0", *fleet.where()]

            def leads(process):
                live.wait_for("it leads", lambda: re.search(r"^millrace_leader 1$", process.metrics(), re.M))
                return process

            coordinator = leads(fleet._start("coordinator", command, **of("coordinator")))
            refused = fleet.script("infra/nats/backup.sh", fleet.folder / "refused", **of("coordinator"))
            self.assertNotEqual(refused.returncode, 0, "the coordinator's key copies no streams")
            done = fleet.script("infra/nats/backup.sh", fleet.folder / "backup", **of("operator"))
            self.assertEqual(done.returncode, 0, done.stderr)
            coordinator.stop()
            fleet.nats.stop(live.signal.SIGKILL)
            shutil.rmtree(fleet.folder / "auth/streams")
            of = self.guard(fleet)
            done = fleet.script("infra/nats/restore.sh", fleet.folder / "backup", **of("operator"))
            self.assertEqual(done.returncode, 0, done.stderr)
            leads(fleet._start("coordinator", command, **of("coordinator")))

    def test_streams_that_exist_are_not_overwritten(self):
        with live.Fleet() as fleet:
            coordinator = fleet.coordinator()
            live.wait_for("the streams exist", lambda: fleet.millrace("list") is not None)
            done = fleet.script("infra/nats/backup.sh", fleet.folder / "backup")
            self.assertEqual(done.returncode, 0, done.stderr)
            coordinator.stop()
            done = fleet.script("infra/nats/restore.sh", fleet.folder / "backup")
            self.assertNotEqual(done.returncode, 0)
            self.assertIn("exists already", done.stderr)
            done = fleet.script("infra/nats/backup.sh", fleet.folder / "backup")
            self.assertIn("exists; give a new one", done.stderr)


if __name__ == "__main__":
    unittest.main()
