"""Millrace as any NATS client sees it: nats-py and JSON, nothing of Millrace's own.

Run by `nats_py.rs`, which starts a server, a coordinator and a worker, and says where in NATS_URL.
"""

import asyncio
import json
import os
import unittest

import nats
from nats.errors import TimeoutError as NatsTimeout

# Seconds for anything to happen; a passing test takes far less.
PATIENCE = 60


def run_file(name, **changes):
    """A run that needs no model: three turns of counting, sixteen rollouts a step."""
    file = {
        "name": name,
        "steps": 5,
        "model": {"kind": "scripted"},
        "environment": {"name": "counter", "turns": 3},
        "rollout": {"groups_per_step": 4, "group_size": 4, "alpha": 1.0},
        "evaluate": {"prompts": 4},
    }
    file.update(changes)
    return file


class PlainNats(unittest.IsolatedAsyncioTestCase):
    async def asyncSetUp(self):
        self.nc = await nats.connect(os.environ["NATS_URL"])
        self.addAsyncCleanup(self.nc.close)

    async def ask(self, endpoint, request=None):
        """Sends JSON, returns JSON; an error of the service is an exception."""
        answer = await self.raw(endpoint, b"" if request is None else json.dumps(request).encode())
        self.assertIsNone(answer.headers and answer.headers.get("Nats-Service-Error"), answer.data)
        return json.loads(answer.data)

    async def raw(self, endpoint, body):
        return await self.nc.request(f"mr.api.{endpoint}", body, timeout=PATIENCE)

    async def refused(self, endpoint, body, code):
        """The answer is an error in the way of NATS services: two headers, and a body that says more."""
        answer = await self.raw(endpoint, body)
        self.assertIsNotNone(answer.headers, answer.data)
        self.assertEqual(answer.headers["Nats-Service-Error-Code"], str(code))
        self.assertTrue(answer.headers["Nats-Service-Error"])
        error = json.loads(answer.data)
        self.assertEqual(error["code"], code)
        return error

    async def notices(self, subject):
        """What comes on `subject` from now on."""
        subscription = await self.nc.subscribe(subject)
        await self.nc.flush()

        async def each():
            while True:
                message = await subscription.next_msg(timeout=PATIENCE)
                yield message.subject, json.loads(message.data)

        return each()

    async def until(self, notices, kind):
        """All notices up to the first of `kind`, that one last."""
        seen = []
        async for subject, notice in notices:
            self.assertEqual(subject.rsplit(".", 1)[1], notice["kind"])
            seen.append(notice)
            if notice["kind"] == kind:
                return seen

    async def test_the_service_is_found_by_discovery(self):
        ping = json.loads((await self.nc.request("$SRV.PING.millrace", timeout=PATIENCE)).data)
        self.assertEqual((ping["name"], ping["type"]), ("millrace", "io.nats.micro.v1.ping_response"))
        info = json.loads((await self.nc.request("$SRV.INFO.millrace", timeout=PATIENCE)).data)
        self.assertTrue(info["description"])
        endpoints = "submit status list ledger pause resume cancel rm drain scale".split()
        self.assertEqual(
            {endpoint["name"]: endpoint["subject"] for endpoint in info["endpoints"]},
            {name: f"mr.api.{name}" for name in endpoints},
        )

    async def test_statistics_count_requests_and_errors(self):
        async def counts():
            stats = json.loads((await self.nc.request("$SRV.STATS.millrace", timeout=PATIENCE)).data)
            found = next(endpoint for endpoint in stats["endpoints"] if endpoint["name"] == "ledger")
            return found["num_requests"], found["num_errors"]

        before = await counts()
        await self.refused("ledger", b'{"run": "nobody"}', 404)
        # The count is taken after the answer is sent.
        for _ in range(PATIENCE * 20):
            after = await counts()
            if after[1] > before[1]:
                break
            await asyncio.sleep(0.05)
        self.assertEqual((after[0] - before[0], after[1] - before[1]), (1, 1))

    async def test_a_wrong_run_file_is_refused_by_field_value_and_remedy(self):
        file = run_file("wrong", rollout={"group_size": 1, "alpha": -1})
        error = await self.refused("submit", json.dumps(file).encode(), 400)
        fields = {field["field"]: field for field in error["fields"]}
        self.assertEqual(fields.keys(), {"rollout.group_size", "rollout.alpha"})
        self.assertEqual(fields["rollout.alpha"]["value"], "-1")
        self.assertIn("0 to 64", fields["rollout.alpha"]["remedy"])
        self.assertNotIn("wrong", [run["run"] for run in (await self.ask("list"))["runs"]])

    async def test_what_is_no_run_file_is_refused(self):
        unknown = run_file("wrong", rollout={"alfa": 1})
        error = await self.refused("submit", json.dumps(unknown).encode(), 400)
        self.assertIn("alfa", error["message"])
        self.assertTrue(error["fields"][0]["field"].startswith("rollout"), error)
        for body in [b"", b"{", b"[]", b"\xff\xfe", b"[" * 100_000, b'{"name": "x"}']:
            with self.subTest(body=body[:20]):
                await self.refused("submit", body, 400)

    async def test_a_run_that_nobody_knows_is_404(self):
        for endpoint in ["status", "ledger", "cancel"]:
            with self.subTest(endpoint):
                await self.refused(endpoint, b'{"run": "nobody"}', 404)
                await self.refused(endpoint, b'{"run": "not a name"}', 400)
                await self.refused(endpoint, b'{"rum": "nobody"}', 400)

    async def test_a_run_from_submit_to_its_end(self):
        notices = await self.notices("mr.notice.whole.>")
        self.assertEqual(await self.ask("submit", run_file("whole")), {"run": "whole"})
        await self.refused("submit", json.dumps(run_file("whole")).encode(), 409)

        seen = await self.until(notices, "ended")
        steps = [notice for notice in seen if notice["kind"] == "step"]
        self.assertEqual([notice["version"] for notice in steps if notice["version"] > 0], [1, 2, 3, 4, 5])
        self.assertLessEqual(max(notice["max_staleness"] for notice in steps), 1)
        self.assertEqual((seen[-1]["state"], seen[-1]["version"]), ("finished", 5))

        status = await self.ask("status", {"run": "whole"})
        self.assertEqual((status["state"], status["version"], status["steps"]), ("finished", 5, 5))
        self.assertEqual([evaluation["version"] for evaluation in status["evaluations"]], [0, 5])
        ledger = await self.ask("ledger", {"run": "whole"})
        self.assertEqual(ledger, status["ledger"])
        self.assertEqual(ledger["trained"], 5 * 4 * 4)
        self.assertEqual(ledger["in_flight"], 0)
        self.assertEqual(ledger["admitted"], ledger["trained"] + sum(ledger["dropped"].values()))
        self.assertEqual(ledger, seen[-1]["ledger"])

    async def test_the_policy_is_a_key_that_can_be_watched(self):
        bucket = await self.nc.jetstream().key_value("MILLRACE_POLICY")
        watcher = await bucket.watch("watched")
        await self.ask("submit", run_file("watched"))
        seen = []
        while not (seen and seen[-1]["ended"]):
            try:
                entry = await watcher.updates(timeout=PATIENCE)
            except NatsTimeout:
                self.fail(f"the run did not end; seen: {seen}")
            # The marker that all present values were given is empty.
            if entry is not None:
                seen.append(json.loads(entry.value))
        versions = [policy["version"] for policy in seen]
        self.assertEqual(versions, sorted(versions))
        self.assertEqual(versions[-1], 5)
        for policy in seen:
            self.assertEqual(len(policy["manifest"]), 64)
            self.assertLessEqual(policy["floor"], policy["version"])
            self.assertGreaterEqual(policy["floor"], policy["version"] - 1)

    async def test_a_run_is_cancelled(self):
        notices = await self.notices("mr.notice.endless.>")
        await self.ask("submit", run_file("endless", steps=1_000_000))
        await self.until(notices, "step")
        self.assertEqual(await self.ask("cancel", {"run": "endless"}), {"run": "endless"})
        ended = (await self.until(notices, "ended"))[-1]
        self.assertEqual(ended["state"], "cancelled")
        ledger = ended["ledger"]
        self.assertEqual(ledger["in_flight"], 0)
        self.assertEqual(ledger["admitted"], ledger["trained"] + sum(ledger["dropped"].values()))
        self.assertGreater(ledger["dropped"]["cancelled"], 0)
        listed = {run["run"]: run["state"] for run in (await self.ask("list"))["runs"]}
        self.assertEqual(listed["endless"], "cancelled")


if __name__ == "__main__":
    unittest.main()
