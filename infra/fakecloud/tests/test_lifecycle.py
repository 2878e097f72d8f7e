"""Groups: hooks wait, deadlines hold, and what AWS refuses is refused."""

import time
import unittest

from botocore.exceptions import ClientError

from support import World, until

SERVICE = """cat >/etc/systemd/system/work.service <<UNIT
[Service]
ExecStart=/bin/sleep 1000
TimeoutStopSec=5
UNIT
systemctl enable --now work
"""


class Lifecycle(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        cls.world = World()
        cls.addClassCleanup(cls.world.close)

    def refused(self, call, **words) -> str:
        with self.assertRaises(ClientError) as caught:
            call(**words)
        return caught.exception.response["Error"]["Message"]

    def complete(self, name: str, instance: str, result: str = "CONTINUE") -> dict:
        return {"AutoScalingGroupName": name, "LifecycleHookName": "drain", "InstanceId": instance,
                "LifecycleActionResult": result}

    def test_sizes_beyond_the_bounds_are_refused(self) -> None:
        name, scaling = self.world.group("bounds", MinSize=1, DesiredCapacity=1), self.world.scaling
        [only] = self.world.wait_members(name, 1)
        said = self.refused(scaling.set_desired_capacity, AutoScalingGroupName=name, DesiredCapacity=9)
        self.assertIn("New SetDesiredCapacity value 9 is above max value 4", said)
        said = self.refused(scaling.set_desired_capacity, AutoScalingGroupName=name, DesiredCapacity=0)
        self.assertIn("is below min value 1", said)
        said = self.refused(scaling.terminate_instance_in_auto_scaling_group, InstanceId=only,
                            ShouldDecrementDesiredCapacity=True)
        self.assertIn("desiredSize equals minSize (1)", said)
        self.assertEqual(self.world.members(name), {only: "InService"})
        said = self.refused(scaling.set_desired_capacity, AutoScalingGroupName="none", DesiredCapacity=1)
        self.assertIn("name not found", said)

    def test_an_instance_waits_for_its_hook_and_is_told(self) -> None:
        name, scaling = self.world.group("waits", SERVICE, hook=60), self.world.scaling
        scaling.set_desired_capacity(AutoScalingGroupName=name, DesiredCapacity=2)
        first, second = self.world.wait_members(name, 2)
        said = self.refused(scaling.complete_lifecycle_action, **self.complete(name, first))
        self.assertIn("No active Lifecycle Action found with instance ID", said)
        scaling.terminate_instance_in_auto_scaling_group(InstanceId=first, ShouldDecrementDesiredCapacity=True)
        self.assertEqual(self.world.members(name), {first: "Terminating:Wait", second: "InService"})
        self.assertEqual(self.world.cloud.state()["machines"][first]["target"], "Terminated")
        self.assertIn("sleep", self.world.cloud.state()["machines"][first]["processes"])
        self.assertIn("CONTINUE or ABANDON",
                      self.refused(scaling.complete_lifecycle_action, **self.complete(name, first, "DONE")))
        scaling.complete_lifecycle_action(**self.complete(name, first))
        self.assertEqual(self.world.members(name), {second: "InService"})
        until("the machine has shut down", lambda: self.world.cloud.state()["machines"][first]["ended"], 20)
        console = self.world.cloud.console(first)
        self.assertIn("work.service: ended with -15", console)
        self.assertIn("down", console)

    def test_a_deadline_holds_and_a_heartbeat_moves_it(self) -> None:
        name, scaling = self.world.group("deadline", hook=2, DesiredCapacity=2), self.world.scaling
        silent, beating = self.world.wait_members(name, 2)
        scaling.set_desired_capacity(AutoScalingGroupName=name, DesiredCapacity=0)
        began = time.monotonic()
        hook = {"AutoScalingGroupName": name, "LifecycleHookName": "drain", "InstanceId": beating}

        def silent_is_gone() -> bool:
            scaling.record_lifecycle_action_heartbeat(**hook)
            return silent not in self.world.members(name)

        until("the silent one is gone", silent_is_gone, 20)
        self.assertGreaterEqual(time.monotonic() - began, 2)
        until("it beats beyond its first deadline", lambda: silent_is_gone() and time.monotonic() - began > 4, 20)
        self.assertEqual(self.world.members(name), {beating: "Terminating:Wait"})
        until("the other is gone without a heartbeat", lambda: not self.world.members(name), 20)
        ended = self.world.cloud.journal("terminated", silent)
        self.assertEqual([entry["why"] for entry in ended], ["hook timed out"])

    def test_instances_are_spread_and_a_lost_one_is_replaced(self) -> None:
        name = self.world.group("lost", SERVICE, DesiredCapacity=3)
        first = self.world.wait_members(name, 3)
        machines = self.world.cloud.state()["machines"]
        self.assertEqual(len({machines[one]["zone"] for one in first}), 3)
        self.world.cloud.do("kill", first[0])
        until("it is gone", lambda: self.world.cloud.state()["machines"][first[0]]["ended"], 5)
        self.assertEqual(self.world.cloud.state()["machines"][first[0]]["processes"], [])
        self.assertNotIn("shutting down", self.world.cloud.console(first[0]))
        now = self.world.wait_members(name, 3)
        self.assertEqual(len(set(now) & set(first)), 2)
        machines = self.world.cloud.state()["machines"]
        self.assertEqual(len({machines[one]["zone"] for one in now}), 3)

    def test_a_group_with_instances_is_not_deleted_without_force(self) -> None:
        name, scaling = self.world.group("full", hook=60, DesiredCapacity=1), self.world.scaling
        self.world.wait_members(name, 1)
        self.assertIn("still in the group", self.refused(scaling.delete_auto_scaling_group, AutoScalingGroupName=name))
        scaling.delete_auto_scaling_group(AutoScalingGroupName=name, ForceDelete=True)
        self.assertEqual(scaling.describe_auto_scaling_groups(AutoScalingGroupNames=[name])["AutoScalingGroups"], [])


if __name__ == "__main__":
    unittest.main()
