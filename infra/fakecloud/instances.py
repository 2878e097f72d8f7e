"""EC2 as AWS has it: moto's, with a real machine for each instance, and placement groups."""

import base64
import secrets
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import access
import lifecycle
import network
from journal import log
from machines import Machine, Settings
from metadata import stamp
from moto.core.responses import ActionResult, EmptyResult
from moto.core.types import Base64EncodedString
from moto.ec2.exceptions import EC2ClientError
from moto.ec2.models import EC2Backend
from moto.ec2.models.instances import Instance, InstanceBackend
from moto.ec2.models.launch_templates import LaunchTemplateVersion
from moto.ec2.models.security_groups import SecurityGroupRule
from moto.ec2.models.vpcs import VPC
from moto.ec2.responses import EC2Response

MACHINES: dict[str, Machine] = {}
# All that ever were, for those who count what is left.
EVER: list[Machine] = []
SETTINGS: Settings
_boots = ThreadPoolExecutor(8, thread_name_prefix="boot")
_groups: dict[str, dict[str, Any]] = {}

_run, _terminate = InstanceBackend.run_instances, Instance.terminate
_template, _vpc, _attach = LaunchTemplateVersion.__init__, VPC.__init__, EC2Backend.attach_volume


def tags_of(instance: Any) -> dict[str, str]:
    return {tag["key"]: tag["value"] for tag in instance.get_tags()}


def role_of(call: dict[str, Any], template: dict[str, Any]) -> str | None:
    """The role of an instance: from the call, or from its launch template."""
    profile = template.get("IamInstanceProfile") or {}
    name = (call.get("iam_instance_profile_name") or call.get("iam_instance_profile_arn")
            or profile.get("Name") or profile.get("Arn") or "").rpartition("/")[2]
    profiles = access.iam_backends[access.ACCOUNT]["aws"].instance_profiles.values()
    return next((role.name for profile in profiles if profile.name == name for role in profile.roles), None)


def run_instances(self: Any, *args: Any, **words: Any) -> Any:
    """moto's instances, and a machine for each."""
    template = words.get("launch_template")
    # pylint: disable=protected-access
    facts = self._get_template_from_args(template).data if template else {}
    # moto keeps what the call itself says, and of the template only some.
    words.setdefault("metadata_options", facts.get("MetadataOptions", {}))
    reservation = _run(self, *args, **words)
    for instance in reservation.instances:
        instance.placement.group_name = facts.get("Placement", {}).get("GroupName", "")
        # moto takes the zone of the call, also where the interface exists already and is in another.
        instance.placement.zone = instance.nics[0].subnet.availability_zone
        group_name = tags_of(instance).get("aws:autoscaling:groupName")
        group = next((group for group in lifecycle.all_groups() if group.name == group_name), None)
        if words.get("instance_market_options") == "spot" or wants_spot(group, facts):
            instance.lifecycle = "spot"
        boot(instance, group_name, role_of(words, facts))
    return reservation


def wants_spot(group: Any, template: dict[str, Any]) -> bool:
    """Whether the next instance of a group is to be a spot one."""
    if template.get("InstanceMarketOptions", {}).get("MarketType") == "spot":
        return True
    shares = ((group.mixed_instances_policy if group else None) or {}).get("InstancesDistribution")
    if not shares:
        return False
    members = lifecycle.alive(group)
    on_demand = sum(state.instance.lifecycle != "spot" for state in members)
    base = int(shares.get("OnDemandBaseCapacity", 0))
    above = int(shares.get("OnDemandPercentageAboveBaseCapacity", 100))
    return on_demand >= base + (len(members) + 1 - base) * above / 100


def boot(instance: Any, group: str | None, role: str | None) -> None:
    machine = Machine(SETTINGS, instance.id, address=instance.private_ip, zone=instance.placement.zone,
                      type=instance.instance_type, image=instance.image_id, user_data=bytes_of(instance.user_data),
                      group=group, role=role, spot=instance.lifecycle == "spot",
                      tags=lambda: tags_of(instance))
    MACHINES[machine.id] = machine
    EVER.append(machine)
    log("launch", id=machine.id, group=group, address=machine.address, zone=machine.zone, type=machine.type,
        spot=machine.spot, name=tags_of(instance).get("Name"))

    def run() -> None:
        try:
            machine.start(lambda: access.keys_of(machine.id, role) if role else None)
        except (OSError, RuntimeError) as error:
            log("boot failed", id=machine.id, error=str(error))

    _boots.submit(run)


def bytes_of(data: Any) -> bytes:
    """User data as the instance gets it."""
    if data is None:
        return b""
    return base64.b64decode(str(data))


def remove(instance: Any, orderly: bool) -> Any:
    """The instance ends, and its machine with it."""
    machine = MACHINES.pop(instance.id, None)
    if machine is not None:
        access.revoke(instance.id) if not orderly else None
        if orderly:
            machine.shut_down()
            threading.Thread(target=lambda: machine.ended.wait() and access.revoke(machine.id), daemon=True).start()
        else:
            machine.cut_off()
    previous = _terminate(instance)
    for interface in instance.nics.values():
        # moto keeps one that outlives its instance attached; the instance still shows its address.
        if not interface.delete_on_termination:
            interface.instance = interface.attachment_id = interface.attach_time = interface.device_index = None
            interface.status = "available"
    lifecycle.lost(instance)
    return previous


def end(instance_id: str, orderly: bool) -> None:
    """As the owner of the hardware ends an instance."""
    from moto.ec2.models import ec2_backends  # pylint: disable=import-outside-toplevel
    with lifecycle.LOCK:
        backends = [backend for account in list(ec2_backends.values()) for backend in list(account.values())]
        for backend in backends:
            for instance in backend.all_instances():
                if instance.id == instance_id and instance.is_running():
                    remove(instance, orderly)


def interrupt(machine: Machine, seconds: float) -> None:
    """A spot interruption: the notice, and the end after it."""
    machine.action = {"action": "terminate", "time": stamp(time.time() + seconds)}
    log("spot notice", id=machine.id, seconds=seconds)
    threading.Timer(seconds, end, (machine.id, True)).start()


def tell_target(instance_id: str, state: str) -> None:
    if machine := MACHINES.get(instance_id):
        machine.target_state = state


def attach_volume(self: Any, volume_id: str, instance_id: str, device_path: str, *args: Any, **words: Any) -> Any:
    done = _attach(self, volume_id, instance_id, device_path, *args, **words)
    if machine := MACHINES.get(instance_id):
        machine.attach(volume_id, device_path)
    return done


def template_version(self: Any, template: Any, number: int, data: dict[str, Any], description: str) -> None:
    """moto returns user data that was given as text, and tags of the template itself, otherwise than they came."""
    data["TagSpecifications"] = [spec for spec in data.get("TagSpecifications", [])
                                 if spec.get("ResourceType") != "launch-template"]
    if isinstance(data.get("UserData"), str):
        data["UserData"] = Base64EncodedString(data["UserData"])
    _template(self, template, number, data, description)


def vpc(self: Any, *args: Any, **words: Any) -> None:
    """Machines of a new VPC are on the wire."""
    _vpc(self, *args, **words)
    if not self.is_default:
        network.reach(self.cidr_block)
        SETTINGS.networks.append(self.cidr_block)


def described(self: Any) -> str | None:
    """moto forgets the description of a rule that names another group."""
    return self.ip_range.get("Description") or self.source_group.get("Description")


# ---- placement groups --------------------------------------------------------


def create_placement_group(self: Any) -> ActionResult:
    # pylint: disable=protected-access
    name = self._get_param("GroupName")
    if name in _groups:
        raise EC2ClientError("InvalidPlacementGroup.Duplicate", f"The Placement Group '{name}' already exists.")
    specs = self._get_param("TagSpecifications", []) or []
    _groups[name] = {
        "GroupName": name, "GroupId": f"pg-{secrets.token_hex(8)}0", "State": "available",
        "Strategy": self._get_param("Strategy") or "cluster", "SpreadLevel": None, "PartitionCount": None,
        "GroupArn": f"arn:aws:ec2:{self.region}:{access.ACCOUNT}:placement-group/{name}",
        "Tags": [tag for spec in specs for tag in spec.get("Tags", [])],
    }
    return ActionResult({"PlacementGroup": _groups[name]})


def describe_placement_groups(self: Any) -> ActionResult:
    names = self._get_param("GroupNames", []) or []  # pylint: disable=protected-access
    for name in names:
        if name not in _groups:
            raise EC2ClientError("InvalidPlacementGroup.Unknown", f"The Placement Group '{name}' is unknown.")
    return ActionResult({"PlacementGroups": [group for name, group in _groups.items() if not names or name in names]})


def delete_placement_group(self: Any) -> EmptyResult:
    name = self._get_param("GroupName")  # pylint: disable=protected-access
    if name not in _groups:
        raise EC2ClientError("InvalidPlacementGroup.Unknown", f"The Placement Group '{name}' is unknown.")
    del _groups[name]
    return EmptyResult()


def install(settings: Settings) -> None:
    """Puts all this into moto."""
    global SETTINGS  # pylint: disable=global-statement
    SETTINGS = settings
    InstanceBackend.run_instances = EC2Backend.run_instances = run_instances
    Instance.terminate = lambda self: remove(self, orderly=True)
    LaunchTemplateVersion.__init__, VPC.__init__ = template_version, vpc
    EC2Backend.attach_volume, SecurityGroupRule.description = attach_volume, property(described)
    for call in (create_placement_group, describe_placement_groups, delete_placement_group):
        setattr(EC2Response, call.__name__, call)
    lifecycle.tell_target, lifecycle.end_instance = tell_target, lambda instance: remove(instance, orderly=True)
