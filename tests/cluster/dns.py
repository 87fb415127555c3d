"""The cluster's DNS: A, SRV and PTR records of services and of pods behind headless ones, as Kubernetes specifies them.

python -m tests.cluster.dns KUBECONFIG ADDRESS
"""

import sys
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path

from dnslib import PTR, QTYPE, RCODE, RD, RR, SRV, A, DNSRecord
from dnslib.server import BaseResolver, DNSLogger, DNSServer
from tests.cluster.follow import Api, Objects

ZONE = "cluster.local"
_PORT = 53
_TTL = 5
_SERVICES, _ENDPOINTS = "/api/v1/services", "/api/v1/endpoints"


class Records:
    """Services and Endpoints by namespace and name, and what follows from them."""

    def __init__(self) -> None:
        self.services: Objects = {}
        self.endpoints: Objects = {}

    def forward(self, name: str) -> list[tuple[str, RD]] | None:
        """The records of `name`, which is in the zone: empty for a name that only has others below it.

        None means that there is no such name.
        """
        *before, kind = name.removesuffix(ZONE).rstrip(".").split(".")
        if len(before) < 2:
            return [] if kind in ("", "svc") else None
        *before, service, namespace = before
        if kind != "svc" or not (spec := self.services.get((namespace, service), {}).get("spec")):
            return None
        address, backends = spec.get("clusterIP"), list(self._backends(namespace, service))
        headless = address == "None"
        if not address:  # an external name
            return []
        match before:
            case []:
                addresses = [ip for _, ip, _ in backends] if headless else [address]
                return [("A", A(ip)) for ip in addresses] or None
            case [host] if headless:
                return [("A", A(ip)) for hostname, ip, _ in backends if hostname == host] or None
            case [port, protocol] if port[:1] == protocol[:1] == "_":
                base = f"{service}.{namespace}.svc.{ZONE}"
                hosts = [(f"{hostname}.{base}", ports) for hostname, _, ports in backends]
                targets = hosts if headless else [(base, spec["ports"])]
                return list(_srv(targets, port[1:], protocol[1:].upper())) or None
        return None

    def reverse(self, address: str) -> list[str]:
        names = []
        for (namespace, name), service in list(self.services.items()):
            base, cluster_ip = f"{name}.{namespace}.svc.{ZONE}", service["spec"].get("clusterIP")
            if cluster_ip == address:
                names.append(base)
            elif cluster_ip == "None":
                names += [
                    f"{host}.{base}" for host, ip, _ in self._backends(namespace, name) if ip == address
                ]
        return names

    def _backends(self, namespace: str, name: str) -> Iterator[tuple[str, str, list[dict]]]:
        """Host name, address and ports of each pod behind a service."""
        for subset in self.endpoints.get((namespace, name), {}).get("subsets", []):
            for each in subset.get("addresses", []):
                yield (
                    each.get("hostname") or each["ip"].replace(".", "-"),
                    each["ip"],
                    subset.get("ports", []),
                )


def _srv(targets: Iterable[tuple[str, list[dict]]], port: str, protocol: str) -> Iterator[tuple[str, RD]]:
    for target, ports in targets:
        for each in ports:
            if (each.get("name"), each["protocol"]) == (port, protocol):
                yield "SRV", SRV(0, 100, each["port"], target)


class Resolver(BaseResolver):
    def __init__(self, records: Records) -> None:
        self.records = records
        self.synced = {path: threading.Event() for path in (_SERVICES, _ENDPOINTS)}

    def resolve(self, request: DNSRecord, _handler: object) -> DNSRecord:
        reply = request.reply()
        question, name = request.q, str(request.q.qname).rstrip(".").lower()
        if not all(each.is_set() for each in self.synced.values()):
            reply.header.rcode = RCODE.SERVFAIL
            return reply
        if name.endswith(".in-addr.arpa"):
            records = [
                ("PTR", PTR(host)) for host in self.records.reverse(".".join(name.split(".")[3::-1]))
            ] or None
        else:
            records = self.records.forward(name) if f".{name}".endswith(f".{ZONE}") else None
        if records is None:
            reply.header.rcode = RCODE.NXDOMAIN
        for kind, data in records or []:
            if QTYPE[question.qtype] == kind:
                reply.add_answer(RR(question.qname, getattr(QTYPE, kind), rdata=data, ttl=_TTL))
        return reply


def main(kubeconfig: Path, address: str) -> None:
    api, records = Api(kubeconfig), Records()
    resolver = Resolver(records)
    for tcp in (True, False):
        quiet = DNSLogger("-recv,-send,-request,-reply,-truncated")
        DNSServer(resolver, address=address, port=_PORT, tcp=tcp, logger=quiet).start_thread()

    def listed(path: str) -> None:
        resolver.synced[path].set()

    api.follow_beside(_SERVICES, records.services, listed)
    api.follow(_ENDPOINTS, records.endpoints, listed)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
