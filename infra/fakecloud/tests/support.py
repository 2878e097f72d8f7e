"""A cloud for the tests of a file, with one VPC in it."""

import base64
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

import boto3  # noqa: E402  pylint: disable=wrong-import-position
from bench import ROOT, Cloud, until  # noqa: E402  pylint: disable=wrong-import-position
from botocore.config import Config  # noqa: E402  pylint: disable=wrong-import-position

__all__ = ["World", "until"]


class World:
    """The cloud and clients of its person who applies."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="millrace-fakecloud-"))
        self.cloud = Cloud(self.folder, {}, ROOT / ".venv/bin/weed")
        self.scaling, self.ec2, self.iam, self.s3 = (self.client(name) for name in ("autoscaling", "ec2", "iam", "s3"))
        vpc = self.ec2.create_vpc(CidrBlock="10.99.0.0/16")["Vpc"]["VpcId"]
        self.subnets = [
            self.ec2.create_subnet(VpcId=vpc, CidrBlock=f"10.99.{number}.0/24", AvailabilityZone=f"us-east-1{zone}")
            ["Subnet"]["SubnetId"] for number, zone in enumerate("abc")]

    def client(self, name: str, keys: dict[str, str] | None = None) -> Any:
        keys = keys or {"AccessKeyId": "AKIAADMIN", "SecretAccessKey": "fake"}
        endpoint = self.cloud.facts["AWS_ENDPOINT_URL_S3" if name == "s3" else "AWS_ENDPOINT_URL"]
        return boto3.client(name, region_name="us-east-1", endpoint_url=endpoint,
                            aws_access_key_id=keys["AccessKeyId"], aws_secret_access_key=keys["SecretAccessKey"],
                            aws_session_token=keys.get("Token"),
                            config=Config(retries={"max_attempts": 1}, s3={"addressing_style": "path"}))

    def role(self, name: str, statements: list[dict[str, Any]]) -> str:
        """A role with an instance profile of its name."""
        trust = {"Version": "2012-10-17", "Statement": []}
        self.iam.create_role(RoleName=name, AssumeRolePolicyDocument=json.dumps(trust))
        policy = {"Version": "2012-10-17", "Statement": statements}
        self.iam.put_role_policy(RoleName=name, PolicyName="own", PolicyDocument=json.dumps(policy))
        self.iam.create_instance_profile(InstanceProfileName=name)
        self.iam.add_role_to_instance_profile(InstanceProfileName=name, RoleName=name)
        return name

    def group(self, name: str, script: str = "exit 0", hook: int | None = None, profile: str | None = None,
              **words: Any) -> str:
        """An auto-scaling group whose instances run the script."""
        data: dict[str, Any] = {"ImageId": "ami-1", "InstanceType": "c6i.large",
                                "UserData": base64.b64encode(f"#!/bin/bash\n{script}\n".encode()).decode()}
        if profile:
            data["IamInstanceProfile"] = {"Name": profile}
        data.update(words.pop("template", {}))
        self.ec2.create_launch_template(LaunchTemplateName=name, LaunchTemplateData=data)
        sizes = {"MinSize": 0, "MaxSize": 4, "DesiredCapacity": 0, **words}
        hooks = [] if hook is None else [{
            "LifecycleHookName": "drain", "LifecycleTransition": "autoscaling:EC2_INSTANCE_TERMINATING",
            "HeartbeatTimeout": hook, "DefaultResult": "CONTINUE"}]
        self.scaling.create_auto_scaling_group(
            AutoScalingGroupName=name, LaunchTemplate={"LaunchTemplateName": name, "Version": "$Latest"},
            VPCZoneIdentifier=",".join(self.subnets), LifecycleHookSpecificationList=hooks, **sizes)
        for one in hooks:
            self.scaling.put_lifecycle_hook(AutoScalingGroupName=name, **one)
        return name

    def members(self, name: str) -> dict[str, str]:
        group = self.scaling.describe_auto_scaling_groups(AutoScalingGroupNames=[name])["AutoScalingGroups"][0]
        return {one["InstanceId"]: one["LifecycleState"] for one in group["Instances"]}

    def wait_members(self, name: str, count: int) -> list[str]:
        """The instances of a group once so many are up and ran their user data."""
        def up() -> list[str]:
            found = [one for one, state in self.members(name).items() if state == "InService"]
            done = [one for one in found if "user data ended" in self.cloud.console(one)]
            return done if len(found) == len(done) == count else []
        return until(f"{name} has {count} instances that ran their user data", up, 60)

    def close(self) -> None:
        self.cloud.process.terminate()
        self.cloud.process.wait(30)
        if not os.environ.get("FAKECLOUD_KEEP"):
            shutil.rmtree(self.folder, ignore_errors=True)
