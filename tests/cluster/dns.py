"""The cluster's DNS: A, SRV and PTR records of services and of pods behind headless ones, as Kubernetes specifies them.

python -m tests.cluster.dns KUBECONFIG ADDRESS
"""

import base64
import json
import ssl
import sys
import threading
import time
import urllib.request
from collections.abc import Iterable, Iterator
from http.client import HTTPResponse
from pathlib import Path

from dnslib import PTR, QTYPE, RCODE, RD, RR, SRV, A, DNSRecord
from dnslib.server import BaseResolver, DNSLogger, DNSServer

ZONE = "cluster.local"
_PORT = 53
_TTL = 5
_LIST_S, _WATCH_S = 10, 240
Key = tuple[str, str]


class Records:
    """Services and Endpoints by namespace and name, and what follows from them."""

    def __init__(self) -> None:
        self.services: dict[Key, dict] = {}
        self.endpoints: dict[Key, dict] = {}

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
    def __init__(self, records: Records, synced: list[threading.Event]) -> None:
        self.records, self.synced = records, synced

    def resolve(self, request: DNSRecord, _handler: object) -> DNSRecord:
        reply = request.reply()
        question, name = request.q, str(request.q.qname).rstrip(".").lower()
        if not all(each.is_set() for each in self.synced):
            reply.header.rcode = RCODE.SERVFAIL
            return reply
        if name.endswith(".in-addr.arpa"):
            found = [
                ("PTR", PTR(host)) for host in self.records.reverse(".".join(name.split(".")[3::-1]))
            ] or None
        else:
            found = self.records.forward(name) if f".{name}".endswith(f".{ZONE}") else None
        if found is None:
            reply.header.rcode = RCODE.NXDOMAIN
        for kind, data in found or []:
            if QTYPE[question.qtype] == kind:
                reply.add_answer(RR(question.qname, getattr(QTYPE, kind), rdata=data, ttl=_TTL))
        return reply


class Api:
    """Lists and watches, with a kubeconfig of ours."""

    def __init__(self, kubeconfig: Path) -> None:
        config = json.loads(kubeconfig.read_text())
        cluster = config["clusters"][0]["cluster"]
        authority = base64.b64decode(cluster["certificate-authority-data"]).decode()
        self._server, self._token = cluster["server"], config["users"][0]["user"]["token"]
        self._context = ssl.create_default_context(cadata=authority)

    def follow(self, plural: str, into: dict[Key, dict], synced: threading.Event) -> None:
        """Keeps `into` as the server has it, for ever; `synced` from the first list on."""
        while True:
            try:
                listed = json.load(self._get(f"/api/v1/{plural}", _LIST_S))
                fresh = {_key(each): each for each in listed["items"]}
                for gone in into.keys() - fresh.keys():
                    del into[gone]
                into.update(fresh)
                synced.set()
                version = listed["metadata"]["resourceVersion"]
                query = f"watch=1&timeoutSeconds={_WATCH_S}&resourceVersion={version}"
                self._watch(f"/api/v1/{plural}?{query}", into)
            except (OSError, ValueError) as error:
                print(f"{plural}: {error!r}", file=sys.stderr, flush=True)
                time.sleep(0.5)

    def _watch(self, path: str, into: dict[Key, dict]) -> None:
        for line in self._get(path, _WATCH_S + _LIST_S):
            event = json.loads(line)
            if event["type"] in ("ADDED", "MODIFIED"):
                into[_key(event["object"])] = event["object"]
            elif event["type"] == "DELETED":
                into.pop(_key(event["object"]), None)
            else:
                return

    def _get(self, path: str, timeout: float) -> HTTPResponse:
        request = urllib.request.Request(
            self._server + path, headers={"Authorization": f"Bearer {self._token}"}
        )
        return urllib.request.urlopen(request, context=self._context, timeout=timeout)


def _key(item: dict) -> Key:
    return item["metadata"]["namespace"], item["metadata"]["name"]


def main(kubeconfig: Path, address: str) -> None:
    api, records = Api(kubeconfig), Records()
    synced = [threading.Event(), threading.Event()]
    for tcp in (True, False):
        quiet = DNSLogger("-recv,-send,-request,-reply,-truncated")
        server = DNSServer(Resolver(records, synced), address=address, port=_PORT, tcp=tcp, logger=quiet)
        server.start_thread()
    threading.Thread(target=api.follow, args=("services", records.services, synced[0]), daemon=True).start()
    api.follow("endpoints", records.endpoints, synced[1])


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
