"""Who reaches whom under a set of NetworkPolicies, as the API defines it: what a policy selects is closed in the policy's
directions, and open again for what any of them allows."""

import ipaddress


def selects(selector, labels):
    """Whether a label selector matches."""
    if any(labels.get(key) != value for key, value in selector.get("matchLabels", {}).items()):
        return False
    for rule in selector.get("matchExpressions", []):
        holds = {
            "In": labels.get(rule["key"]) in rule.get("values", []),
            "NotIn": labels.get(rule["key"]) not in rule.get("values", []),
            "Exists": rule["key"] in labels,
            "DoesNotExist": rule["key"] not in labels,
        }[rule["operator"]]
        if not holds:
            return False
    return True


class Network:
    """Pods of one namespace (name to labels) and the policies that hold for them."""

    def __init__(self, policies, pods, namespace):
        self.policies, self.pods, self.namespace = policies, pods, namespace

    def connects(self, source, target, port):
        """Whether a pod may open a connection to another one."""
        return (self._allows("Egress", source, self._pod(target), port)
                and self._allows("Ingress", target, self._pod(source), port))

    def reaches(self, source, address, port):
        """Whether a pod may open a connection to an address outside of the cluster."""
        return self._allows("Egress", source, {"address": address}, port)

    def reaches_namespace(self, source, namespace, port):
        """Whether a pod may open a connection to any pod of another namespace."""
        return self._allows("Egress", source, {"namespace": namespace, "labels": {}}, port)

    def enters(self, target, namespace, port):
        """Whether any pod of another namespace may open a connection to a pod."""
        return self._allows("Ingress", target, {"namespace": namespace, "labels": {}}, port)

    def _pod(self, name):
        return {"namespace": self.namespace, "labels": self.pods[name]}

    def _allows(self, direction, pod, peer, port):
        own = [policy["spec"] for policy in self.policies
               if direction in policy["spec"]["policyTypes"] and selects(policy["spec"]["podSelector"], self.pods[pod])]
        if not own:
            return True
        rules = [rule for spec in own for rule in spec.get(direction.lower()) or []]
        return any(self._matches(rule, "to" if direction == "Egress" else "from", peer, port) for rule in rules)

    def _matches(self, rule, side, peer, port):
        ports = [entry["port"] for entry in rule.get("ports", []) if entry.get("protocol", "TCP") == "TCP"]
        if rule.get("ports") and port not in ports:
            return False
        return side not in rule or any(self._is(entry, peer) for entry in rule[side])

    def _is(self, entry, peer):
        if "ipBlock" in entry:
            address = peer.get("address")
            within = lambda block: ipaddress.ip_address(address) in ipaddress.ip_network(block)
            block = entry["ipBlock"]
            return bool(address) and within(block["cidr"]) and not any(map(within, block.get("except", [])))
        if "address" in peer:
            return False
        if "namespaceSelector" in entry:
            name = {"kubernetes.io/metadata.name": peer["namespace"]}
            if not selects(entry["namespaceSelector"], name):
                return False
        elif peer["namespace"] != self.namespace:
            return False
        return selects(entry.get("podSelector", {}), peer["labels"])
