"""Who may do what: keys of instance roles, and the policies of roles and buckets.

Calls with an instance's keys are judged by the policies that the role has at moto. Keys that no instance has belong to
the person who applies, who may do everything that a bucket's policy does not forbid. What a policy says and this file
does not know is an error, never a permission.
"""

import fnmatch
import json
import re
import secrets
import threading
import time
import urllib.parse
from dataclasses import dataclass
from typing import Any

from journal import log
from metadata import stamp
from moto.iam.models import iam_backends

ACCOUNT = "123456789012"
LIFE_S = 6 * 3600
# Keys are renewed before they end, as the metadata service does.
RENEW_S = 600


@dataclass
class Keys:
    """The keys of one instance."""

    access_key: str
    secret_key: str
    token: str
    role: str
    instance: str
    ends: float


_lock = threading.Lock()
_keys: dict[str, Keys] = {}


def keys_of(instance_id: str, role: str) -> dict[str, str]:
    """What the metadata service says about an instance's role."""
    with _lock:
        mine = [keys for keys in _keys.values() if keys.instance == instance_id and keys.ends > time.time() + RENEW_S]
        if not mine:
            mine = [Keys("ASIA" + secrets.token_hex(8).upper(), secrets.token_urlsafe(30), secrets.token_urlsafe(60),
                         role, instance_id, time.time() + LIFE_S)]
            _keys[mine[0].access_key] = mine[0]
    keys = mine[0]
    return {"Code": "Success", "LastUpdated": stamp(time.time()), "Type": "AWS-HMAC", "AccessKeyId": keys.access_key,
            "SecretAccessKey": keys.secret_key, "Token": keys.token, "Expiration": stamp(keys.ends)}


def revoke(instance_id: str) -> None:
    """The instance is gone, and so are its keys."""
    with _lock:
        for keys in [keys for keys in _keys.values() if keys.instance == instance_id]:
            del _keys[keys.access_key]


class Refused(Exception):
    """A call that AWS would refuse."""

    def __init__(self, code: str, message: str):
        super().__init__(message)
        self.code, self.message = code, message


def caller(headers: Any) -> Keys | None:
    """The instance that signed a request; `None` for the person who applies."""
    match = re.search(r"Credential=([^/,]+)/", headers.get("Authorization") or "")
    if not match:
        raise Refused("MissingAuthenticationToken", "Request is missing Authentication Token")
    with _lock:
        keys = _keys.get(match.group(1))
    if keys is None and match.group(1).startswith("ASIA"):
        raise Refused("InvalidClientTokenId", "The security token included in the request is invalid.")
    if keys and headers.get("X-Amz-Security-Token") != keys.token:
        raise Refused("InvalidClientTokenId", "The security token included in the request is invalid.")
    if keys and keys.ends < time.time():
        raise Refused("ExpiredToken", "The security token included in the request is expired")
    return keys


def listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def holds(condition: dict[str, dict[str, Any]], context: dict[str, str]) -> bool:
    """All of a statement's conditions."""
    for operator, tests in condition.items():
        for key, wanted in tests.items():
            found = next((value for name, value in context.items() if name.lower() == key.lower()), None)
            words = [str(word) for word in listed(wanted)]
            if operator == "Null":
                good = (found is None) == (words[0].lower() == "true")
            elif operator in ("Bool", "StringEquals", "ArnEquals"):
                good = found is not None and found in words
            elif operator in ("StringLike", "ArnLike"):
                good = found is not None and any(fnmatch.fnmatchcase(found, word) for word in words)
            elif operator == "StringNotEquals":
                good = found not in words
            else:
                raise Refused("FakeCloud", f"a policy's condition {operator} is not known here; add it to access.py")
            if not good:
                return False
    return True


def applies(statement: dict[str, Any], action: str, resource: str, context: dict[str, str]) -> bool:
    """Whether a statement speaks of the call."""
    unknown = set(statement) - {"Sid", "Effect", "Action", "Resource", "Condition", "Principal"}
    if unknown:
        raise Refused("FakeCloud", f"a policy's {sorted(unknown)} is not known here; add it to access.py")
    actions = [word.lower() for word in listed(statement["Action"])]
    return (any(fnmatch.fnmatchcase(action.lower(), word) for word in actions)
            and any(fnmatch.fnmatchcase(resource, word) for word in listed(statement["Resource"]))
            and holds(statement.get("Condition", {}), context))


def effects(documents: list[Any], action: str, resource: str, context: dict[str, str]) -> set[str]:
    """Allow, Deny, both or nothing."""
    found = [json.loads(document) if isinstance(document, (str, bytes)) else document for document in documents]
    statements = [statement for document in found for statement in listed(document["Statement"])]
    return {statement["Effect"] for statement in statements if applies(statement, action, resource, context)}


def policies_of(role_name: str) -> list[str]:
    """The inline and attached policies of a role."""
    backend = iam_backends[ACCOUNT]["aws"]
    role = backend.get_role(role_name)
    attached = [policy.document for policy in role.managed_policies.values()]
    inline = [urllib.parse.unquote(text) if text.startswith("%7B") else text for text in role.policies.values()]
    return attached + inline


def check(keys: Keys | None, action: str, resource: str, context: dict[str, str], bucket: list[Any]) -> None:
    """Refuses what the role may not do, and what the policy of the bucket forbids.

    Raises:
        Refused: as AWS does.
    """
    found = effects(bucket, action, resource, context)
    if keys:
        found |= effects(policies_of(keys.role), action, resource, context)
    if "Deny" in found or (keys and "Allow" not in found):
        who = f"assumed-role/{keys.role}/{keys.instance}" if keys else "root"
        log("refused", who=who, action=action, resource=resource, why="denied" if "Deny" in found else "not allowed")
        raise Refused("AccessDenied", f"User: arn:aws:sts::{ACCOUNT}:{who} is not authorized to perform: {action} on "
                                      f"resource: {resource}")
