"""Auto-scaling groups as AWS has them: moto's, with what it lacks.

Terminating instances wait for their lifecycle hook (heartbeat, deadline, completion), capacities outside of the bounds
are refused, new instances are spread over the zones, and an instance that is lost is replaced.
"""

import itertools
import threading
import time
from typing import Any

from journal import log
from moto.autoscaling import models, responses
from moto.autoscaling.exceptions import AutoscalingClientError
from moto.core.responses import EmptyResult

# Over everything that decides about instances.
LOCK = threading.RLock()
GLOBAL_TIMEOUT_S = 48 * 3600
HEARTBEATS = 100
TERMINATING = "autoscaling:EC2_INSTANCE_TERMINATING"
_zones = itertools.count()
# What the machines are told; set by instances.py.
tell_target: Any = None
end_instance: Any = None


def invalid(message: str) -> AutoscalingClientError:
    """As AWS refuses a call."""
    return AutoscalingClientError("ValidationError", message)


def hook_of(group: Any) -> Any:
    """The hook for which a terminating instance waits."""
    hooks = group.autoscaling_backend.lifecycle_hooks.values()
    mine = (hook for hook in hooks if hook.auto_scaling_group_name == group.name)
    return next((hook for hook in mine if hook.lifecycle_transition == TERMINATING), None)


def alive(group: Any) -> list[Any]:
    """Members that count towards the desired capacity."""
    return [state for state in group.instance_states if not state.lifecycle_state.startswith("Terminating")]


def begin_end(group: Any, state: Any, why: str) -> None:
    """The instance is to go: it waits for its hook, if there is one."""
    hook = hook_of(group)
    log("terminating", id=state.instance.id, group=group.name, why=why, hook=hook.name if hook else None)
    state.began = time.monotonic()
    if hook is None:
        finish(group, state, "no hook")
        return
    state.lifecycle_state = "Terminating:Wait"
    state.timeout = hook.heartbeat_timeout or 3600
    state.deadline = state.began + state.timeout
    tell_target(state.instance.id, "Terminated")


def finish(group: Any, state: Any, why: str) -> None:
    """The wait is over: the instance leaves the group and shuts down."""
    if state in group.instance_states:
        group.instance_states.remove(state)
    log("terminated", id=state.instance.id, group=group.name, why=why, waited=round(time.monotonic() - state.began, 2))
    state.instance.autoscaling_group = None
    end_instance(state.instance)


def spread(group: Any) -> str | None:
    """The subnet of the next instance: the one with the fewest, as AWS balances zones."""
    subnets = [subnet for subnet in (group.vpc_zone_identifier or "").split(",") if subnet]
    if not subnets:
        return None
    used = [state.instance.subnet_id for state in alive(group)]
    turn = next(_zones)
    return min(subnets, key=lambda subnet: (used.count(subnet), (subnets.index(subnet) - turn) % len(subnets)))


def reconcile(group: Any, wanted: int | None) -> None:
    """Starts what is missing and ends what is too much."""
    with LOCK:
        group.desired_capacity = group.min_size if wanted is None else wanted
        have = alive(group)
        for _ in range(group.desired_capacity - len(have)):
            everywhere = group.vpc_zone_identifier
            group.vpc_zone_identifier = spread(group) or everywhere
            try:
                group.replace_autoscaling_group_instances(1, group.get_propagated_tags())
            finally:
                group.vpc_zone_identifier = everywhere
        surplus = max(0, len(have) - group.desired_capacity)
        for state in [state for state in have if not state.protected_from_scale_in][:surplus]:
            begin_end(group, state, "scale in")


def bounded(group: Any, wanted: int | None) -> int | None:
    """Refuses what is outside of the group's bounds, in the words of AWS."""
    if wanted is None or group.min_size <= wanted <= group.max_size:
        return wanted
    above = wanted > group.max_size
    word, bound = ("above max value", group.max_size) if above else ("below min value", group.min_size)
    raise invalid(f"New SetDesiredCapacity value {wanted} is {word} {bound} for the AutoScalingGroup.")


def group_named(backend: Any, name: str) -> Any:
    group = backend.autoscaling_groups.get(name)
    if group is None:
        raise invalid("AutoScalingGroup name not found - null")
    return group


def set_desired(self: Any, group_name: str, desired_capacity: int | None) -> None:
    with LOCK:
        group = group_named(self, group_name)
        group.set_desired_capacity(bounded(group, desired_capacity))


def terminate_in_group(self: Any, instance_id: str, should_decrement: bool) -> Any:
    with LOCK:
        members = [(group, state) for group in self.autoscaling_groups.values() for state in group.instance_states]
        found = [(group, state) for group, state in members if state.instance.id == instance_id]
        if not found:
            raise invalid(f"Instance Id not found - No managed instance found for instance ID: {instance_id}")
        group, state = found[0]
        if state.lifecycle_state != "InService":
            raise invalid(f"The instance {instance_id} is not in InService or Standby or Pending")
        size = group.desired_capacity
        if should_decrement and size - 1 < group.min_size:
            raise invalid(f"Currently, desiredSize equals minSize ({group.min_size}). Terminating instance without "
                          "replacement will violate group's min size constraint. Either set "
                          "shouldDecrementDesiredCapacity flag to false or lower group's min size.")
        state.instance.autoscaling_group = group
        activity = models.TerminateInstanceActivity(state.instance, size)
        begin_end(group, state, "asked")
        group.set_desired_capacity(size - 1 if should_decrement else size)
        return activity


def waiting(response: Any) -> tuple[Any, Any]:
    """Group and member of a call about a hook."""
    # pylint: disable=protected-access
    name, hook_name, instance_id = (response._get_param(key)
                                    for key in ("AutoScalingGroupName", "LifecycleHookName", "InstanceId"))
    backend = response.autoscaling_backend
    group = backend.autoscaling_groups.get(name)
    if group is None:
        raise invalid(f"AutoScalingGroup name not found - no such group: {name}")
    if f"{name}_{hook_name}" not in backend.lifecycle_hooks:
        raise invalid(f"No Lifecycle Hook found with name: {hook_name}")
    for state in group.instance_states:
        if state.instance.id == instance_id and state.lifecycle_state.endswith(":Wait"):
            return group, state
    raise invalid(f"No active Lifecycle Action found with instance ID {instance_id}")


def complete(self: Any) -> EmptyResult:
    with LOCK:
        group, state = waiting(self)
        result = self._get_param("LifecycleActionResult")  # pylint: disable=protected-access
        if result not in ("CONTINUE", "ABANDON"):
            raise invalid("Lifecycle action result must be CONTINUE or ABANDON")
        state.lifecycle_state = "Terminating:Proceed"
        finish(group, state, f"completed {result}")
    return EmptyResult()


def heartbeat(self: Any) -> EmptyResult:
    with LOCK:
        _, state = waiting(self)
        latest = state.began + min(HEARTBEATS * state.timeout, GLOBAL_TIMEOUT_S)
        state.deadline = min(time.monotonic() + state.timeout, latest)
        log("heartbeat", id=state.instance.id)
    return EmptyResult()


def delete_group(self: Any, group_name: str) -> None:
    """With members only by force, and then without their hooks."""
    with LOCK:
        group = group_named(self, group_name)
        for state in list(group.instance_states):
            state.began = getattr(state, "began", time.monotonic())
            finish(group, state, "group deleted")
        del self.autoscaling_groups[group_name]
        for key in [key for key, hook in self.lifecycle_hooks.items() if hook.auto_scaling_group_name == group_name]:
            del self.lifecycle_hooks[key]


def delete_group_call(self: Any) -> EmptyResult:
    with LOCK:
        name = self._get_param("AutoScalingGroupName")  # pylint: disable=protected-access
        group = group_named(self.autoscaling_backend, name)
        if group.instance_states and not self._get_bool_param("ForceDelete", False):  # pylint: disable=protected-access
            raise AutoscalingClientError("ResourceInUse", "You cannot delete an AutoScalingGroup while there are "
                                         "instances or pending Spot instance request(s) still in the group.")
        self.autoscaling_backend.delete_auto_scaling_group(name)
    return EmptyResult()


def lost(instance: Any) -> None:
    """An instance ended that nobody asked the group about: the group replaces it."""
    with LOCK:
        group = getattr(instance, "autoscaling_group", None)
        if group is None or group.name not in group.autoscaling_backend.autoscaling_groups:
            return
        for state in [state for state in group.instance_states if state.instance.id == instance.id]:
            group.instance_states.remove(state)
            log("lost", id=instance.id, group=group.name)
        instance.autoscaling_group = None
        group.set_desired_capacity(group.desired_capacity)


def expire_forever() -> None:
    """Ends the waits whose deadline has passed, with the hook's default result."""
    while True:
        time.sleep(0.1)
        with LOCK:
            for group in all_groups():
                for state in list(group.instance_states):
                    if state.lifecycle_state == "Terminating:Wait" and time.monotonic() > state.deadline:
                        finish(group, state, "hook timed out")


def all_groups() -> list[Any]:
    backends = [backend for account in list(models.autoscaling_backends.values()) for backend in list(account.values())]
    return [group for backend in backends for group in list(backend.autoscaling_groups.values())]


def update(self: Any, *args: Any, **words: Any) -> None:
    """moto forgets the mixed policy of an update that does not name one, and ignores bounds without a capacity."""
    with LOCK:
        wanted = words.pop("desired_capacity", None)
        low, high = words.get("min_size"), words.get("max_size")
        low, high = self.min_size if low is None else low, self.max_size if high is None else high
        policy = self.mixed_instances_policy
        named = any(words.get(key) for key in ("mixed_instances_policy", "launch_template", "launch_config_name"))
        now = self.desired_capacity
        _update(self, *args, desired_capacity=None, **words)
        if not named:
            self.mixed_instances_policy = policy
        wanted = now if wanted is None else bounded(self, wanted)
        self.set_desired_capacity(min(max(wanted, low), high))


def activities(self: Any) -> Any:
    """The provider asks for failures while it waits for capacity."""
    from moto.core.responses import ActionResult  # pylint: disable=import-outside-toplevel
    del self
    return ActionResult({"Activities": []})


def install() -> None:
    """Puts all this into moto."""
    group, backend, calls = models.FakeAutoScalingGroup, models.AutoScalingBackend, responses.AutoScalingResponse
    group.set_desired_capacity, group.active_instances, group.update = reconcile, alive, update
    backend.set_desired_capacity, backend.terminate_instance = set_desired, terminate_in_group
    backend.delete_auto_scaling_group = delete_group
    # Its own idea of a lost instance; ours is `lost`.
    backend.notify_terminate_instances = lambda self, instance_ids: None
    calls.complete_lifecycle_action, calls.record_lifecycle_action_heartbeat = complete, heartbeat
    calls.delete_auto_scaling_group, calls.describe_scaling_activities = delete_group_call, activities
    threading.Thread(target=expire_forever, daemon=True).start()


_update = models.FakeAutoScalingGroup.update
