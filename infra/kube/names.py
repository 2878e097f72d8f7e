"""Names of headless services, as a cluster's DNS gives them: an A record for each pod that is ready, under the service's name
and, where it has one, under its own. It watches EndpointSlices. Nothing else has a name."""

import ipaddress
import socket
import struct
import threading

from api import Api

DOMAIN = "cluster.local"
TTL_S = 5
A, ANY_IN = 1, 1
NO_SUCH_NAME = 3


class Names:
    """The records, and the server that tells them."""

    def __init__(self, api: Api, address: str):
        self.api, self.ended = api, threading.Event()
        # Of each slice, by its uid: addresses by name.
        self.slices: dict[str, dict[str, list[str]]] = {}
        self.lock = threading.Lock()
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.bind((address, 53))
        for run in (self._follow, self._serve):
            threading.Thread(target=run, daemon=True).start()

    def _follow(self) -> None:
        for kind, each in self.api.watch("/apis/discovery.k8s.io/v1/endpointslices", self.ended):
            with self.lock:
                if kind == "SYNCED":
                    self.slices = {uid: found for uid, found in self.slices.items() if uid in each}
                elif kind == "DELETED":
                    self.slices.pop(each["metadata"]["uid"], None)
                else:
                    self.slices[each["metadata"]["uid"]] = records(each)

    def find(self, name: str) -> list[str] | None:
        """Addresses of a service; ``None`` if there is none of that name."""
        name = name.lower().rstrip(".").removesuffix(f".{DOMAIN}")
        with self.lock:
            found = [named[name] for named in self.slices.values() if name in named]
        return sorted({address for addresses in found for address in addresses}) if found else None

    def _serve(self) -> None:
        while not self.ended.is_set():
            question, sender = self.socket.recvfrom(4096)
            try:
                self.socket.sendto(self.answer(question), sender)
            except (ValueError, IndexError, struct.error, UnicodeDecodeError, OSError) as error:
                print(f"names: {error!r}", flush=True)

    def answer(self, question: bytes) -> bytes:
        """RFC 1035, section 4: the question comes back with the records. Extensions are left out."""
        number, flags = struct.unpack(">HH", question[:4])
        at, labels = 12, []
        while length := question[at]:
            labels.append(question[at + 1:at + 1 + length].decode())
            at += 1 + length
        kind, _ = struct.unpack(">HH", question[at + 1:at + 5])
        found = self.find(".".join(labels))
        addresses = found if found and kind == A else []
        code = 0 if found is not None else NO_SUCH_NAME
        # Response, authoritative; recursion is offered, for clients that insist on it.
        head = struct.pack(">HHHHHH", number, 0x8480 | (flags & 0x0100) | code, 1, len(addresses), 0, 0)
        record = struct.pack(">HHHLH", 0xC00C, A, ANY_IN, TTL_S, 4)
        return head + question[12:at + 5] + b"".join(record + ipaddress.ip_address(each).packed for each in addresses)


def records(each: dict) -> dict[str, list[str]]:
    """A slice's names, each with the addresses that are ready. A service without a ready pod has a name and no address."""
    meta = each["metadata"]
    service = f"{meta['labels']['kubernetes.io/service-name']}.{meta['namespace']}.svc"
    named: dict[str, list[str]] = {service: []}
    for end in each.get("endpoints") or []:
        if (end.get("conditions") or {}).get("ready", True):
            for name in filter(None, (service, f"{end['hostname']}.{service}" if end.get("hostname") else None)):
                named.setdefault(name, []).extend(end["addresses"])
    return named
