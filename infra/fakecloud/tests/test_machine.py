"""Machines: metadata with tokens, spot notices, rights of a role, units."""

import json
import unittest

from botocore.exceptions import ClientError

from support import World, until

METADATA = """imds=http://169.254.169.254/latest
curl -s -o /dev/null -w '%{http_code}' $imds/meta-data/instance-id >/var/log/without
token=$(curl -s -X PUT -H 'X-aws-ec2-metadata-token-ttl-seconds: 60' $imds/api/token)
ask() { curl -s -H "X-aws-ec2-metadata-token: $token" "$imds/meta-data/$1"; }
ask instance-id >/var/log/id
ask tags/instance/aws:autoscaling:groupName >/var/log/group
ask autoscaling/target-lifecycle-state >/var/log/target
ask "iam/security-credentials/$(ask iam/security-credentials/)" >/var/log/keys
while true; do
    ask spot/instance-action | grep -q terminate && ask spot/instance-action >/var/log/spot && break
    sleep 0.2
done &
"""
FAILING = """cat >/etc/systemd/system/fails.service <<'UNIT'
[Service]
EnvironmentFile=/etc/own.env
ExecStart=/bin/bash -c 'echo "${WORD}" >>/var/log/lives; [[ $(wc -l </var/log/lives) -ge 3 ]]'
Restart=on-failure
RestartSec=0
UNIT
echo 'WORD=hello' >/etc/own.env
systemctl enable --now --no-block fails
"""


class Machines(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        cls.world = World()
        cls.addClassCleanup(cls.world.close)

    def file(self, instance: str, path: str) -> str:
        return self.world.cloud.file(instance, path)

    def test_metadata_is_the_instances_own_and_needs_a_token(self) -> None:
        allowed = [{"Effect": "Allow", "Action": "s3:GetObject", "Resource": "arn:aws:s3:::own/mine/*"}]
        name = self.world.group("own", METADATA, profile=self.world.role("own", allowed), DesiredCapacity=2,
                                template={"InstanceMarketOptions": {"MarketType": "spot"}})
        one, other = self.world.wait_members(name, 2)
        self.assertEqual(self.file(one, "/var/log/without"), "401")
        for instance in (one, other):
            self.assertEqual(self.file(instance, "/var/log/id"), instance)
            self.assertEqual(self.file(instance, "/var/log/group"), name)
            self.assertEqual(self.file(instance, "/var/log/target"), "InService")
        dead, living = (json.loads(self.file(instance, "/var/log/keys")) for instance in (one, other))
        self.world.cloud.do("spot", one, seconds=4)
        action = until("the instance sees its notice", lambda: self.file(one, "/var/log/spot"), 10)
        self.assertEqual(json.loads(action)["action"], "terminate")
        self.assertEqual(self.file(other, "/var/log/spot"), "")
        until("it is gone", lambda: self.world.cloud.state()["machines"][one]["ended"], 20)
        self.rights(living, dead)

    def rights(self, keys: dict, dead: dict) -> None:
        """What the role says, and the bucket; and nothing with the keys of an instance that is gone."""
        admin, mine = self.world.s3, self.world.client("s3", keys)
        admin.create_bucket(Bucket="own")
        for key in ("mine/a", "theirs/a"):
            admin.put_object(Bucket="own", Key=key, Body=b"content")
        self.assertEqual(mine.get_object(Bucket="own", Key="mine/a")["Body"].read(), b"content")
        for call, words in [(mine.get_object, {"Key": "theirs/a"}), (mine.put_object, {"Key": "mine/b", "Body": b""}),
                            (mine.delete_object, {"Key": "mine/a"}), (mine.list_objects_v2, {}),
                            (self.world.client("s3", dead).get_object, {"Key": "mine/a"})]:
            with self.assertRaises(ClientError) as caught:
                call(Bucket="own", **words)
            self.assertEqual(caught.exception.response["ResponseMetadata"]["HTTPStatusCode"], 403, words)
        with self.assertRaises(ClientError) as caught:
            self.world.client("autoscaling", keys).set_desired_capacity(AutoScalingGroupName="own", DesiredCapacity=0)
        self.assertEqual(caught.exception.response["Error"]["Code"], "AccessDenied")
        # A commit is created once: the bucket refuses a write without the condition from everyone.
        deny = {"Effect": "Deny", "Principal": "*", "Action": "s3:PutObject", "Resource": "arn:aws:s3:::own/commits/*",
                "Condition": {"Null": {"s3:if-none-match": "true"}}}
        admin.put_bucket_policy(Bucket="own", Policy=json.dumps({"Version": "2012-10-17", "Statement": [deny]}))
        with self.assertRaises(ClientError):
            admin.put_object(Bucket="own", Key="commits/1", Body=b"")
        admin.put_object(Bucket="own", Key="commits/1", Body=b"first", IfNoneMatch="*")
        with self.assertRaises(ClientError) as caught:
            admin.put_object(Bucket="own", Key="commits/1", Body=b"second", IfNoneMatch="*")
        self.assertEqual(caught.exception.response["ResponseMetadata"]["HTTPStatusCode"], 412)

    def test_a_notice_is_for_spot_instances_alone(self) -> None:
        [only] = self.world.wait_members(self.world.group("demand", DesiredCapacity=1), 1)
        with self.assertRaisesRegex(Exception, "no spot instance"):
            self.world.cloud.do("spot", only)

    def test_a_unit_restarts_on_failure_until_it_succeeds(self) -> None:
        [only] = self.world.wait_members(self.world.group("units", FAILING, DesiredCapacity=1), 1)
        until("the third life succeeds", lambda: "fails.service: ended with 0" in self.world.cloud.console(only), 20)
        self.assertEqual(self.file(only, "/var/log/lives"), "hello\n" * 3)

    def test_a_frozen_service_is_cut_off_when_its_machine_ends(self) -> None:
        script = "sed -i s/1000/2000/ /dev/null; printf '[Service]\\nExecStart=/bin/sleep 77\\nTimeoutStopSec=2\\n' " \
                 ">/etc/systemd/system/hangs.service; systemctl enable --now hangs"
        name = self.world.group("hangs", script, DesiredCapacity=1)
        [only] = self.world.wait_members(name, 1)
        self.world.cloud.do("freeze", only, process="sleep")
        self.world.scaling.set_desired_capacity(AutoScalingGroupName=name, DesiredCapacity=0)
        until("the machine has ended", lambda: self.world.cloud.state()["machines"][only]["ended"], 30)
        self.assertIn("stop timed out", self.world.cloud.console(only))


if __name__ == "__main__":
    unittest.main()
