"""Enforces the cluster's NetworkPolicies on a node, in the kernel's packet filter.

A pod that a policy isolates gets a chain of its own: `to_ADDRESS` for what comes, `from_ADDRESS` for what goes. The
first packet of a connection passes the chains of both ends, and is rejected at the end of one that does not return it.
As on any cluster, a node reaches its own pods, and pods on a node's network have no policies.

python -m tests.cluster.policies KUBECONFIG
"""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from queue import SimpleQueue
from typing import NamedTuple

from tests.cluster.follow import Api, Objects

_PODS, _NAMESPACES = "/api/v1/pods", "/api/v1/namespaces"
_POLICIES = "/apis/networking.k8s.io/v1/networkpolicies"
_APPLY_S = 120


class Way(NamedTuple):
    """A direction of a pod's connections: its chains, its words in a policy, and whose address is where in a packet."""

    chain: str
    kind: str
    rules: str
    peers: str
    pod_address: str
    peer_address: str


COMES = Way("to", "Ingress", "ingress", "from", "daddr", "saddr")
GOES = Way("from", "Egress", "egress", "to", "saddr", "daddr")
# A packet for the node itself is not forwarded.
_HOOKS = {"forward": (GOES, COMES), "input": (GOES,)}


def ruleset(pods: list[dict], namespaces: dict[str, dict], policies: list[dict]) -> str:
    """The whole table, in place of an earlier one; `namespaces`: their labels by name."""
    there = [pod for pod in pods if _in_pod_network(pod)]
    chains: dict[str, list[str]] = {}
    jumps: dict[Way, list[str]] = {COMES: [], GOES: []}
    for way in jumps:
        for pod in there:
            if own := [policy for policy in policies if _isolates(policy, pod, way)]:
                address = pod["status"]["podIP"]
                chain = f"{way.chain}_{address}"
                returned = [rule for policy in own for rule in _admitted(policy, pod, way, there, namespaces)]
                chains[chain] = [*returned, "reject with icmp type admin-prohibited"]
                jumps[way].append(f"ip {way.pod_address} {address} jump {chain}")
    for hook, ways in _HOOKS.items():
        chains[hook] = [
            f"type filter hook {hook} priority filter - 1;",
            "ct state established,related accept",
            *(jump for way in ways for jump in jumps[way]),
        ]
    lines = ["table ip policies", "delete table ip policies", "table ip policies {"]
    for name, rules in chains.items():
        lines += [f"chain {name} {{", *rules, "}"]
    return "\n".join([*lines, "}", ""])


def _in_pod_network(pod: dict) -> bool:
    status = pod["status"]
    ended = status.get("phase") in ("Succeeded", "Failed")  # its address may be another's
    return bool(status.get("podIP")) and not pod["spec"].get("hostNetwork") and not ended


def _isolates(policy: dict, pod: dict, way: Way) -> bool:
    spec, metadata = policy["spec"], pod["metadata"]
    return (
        policy["metadata"]["namespace"] == metadata["namespace"]
        and way.kind in spec["policyTypes"]
        and _selects(spec["podSelector"], metadata.get("labels", {}))
    )


def _admitted(
    policy: dict, pod: dict, way: Way, pods: list[dict], namespaces: dict[str, dict]
) -> Iterator[str]:
    """Rules that return the packets which this policy admits."""
    for rule in policy["spec"].get(way.rules, []):
        home = policy["metadata"]["namespace"]
        for match, peer in _peers(rule.get(way.peers), home, way, pods, namespaces):
            for port in rule.get("ports") or [{}]:
                if (accepted := _port(port, pod if way is COMES else peer)) is not None:
                    yield f"{match}{accepted}return"


def _peers(
    peers: list[dict] | None, home: str, way: Way, pods: list[dict], namespaces: dict[str, dict]
) -> Iterator[tuple[str, dict | None]]:
    """The match of each peer's address, and the pod that has it; none named are all."""
    if not peers:
        yield "", None
    for peer in peers or ():
        if block := peer.get("ipBlock"):
            without = "".join(f"ip {way.peer_address} != {each} " for each in block.get("except", ()))
            if ":" not in block["cidr"]:  # pods have IPv4 alone
                yield f"ip {way.peer_address} {block['cidr']} {without}", None
            continue
        for each in pods:
            if _is_peer(peer, each["metadata"], home, namespaces):
                yield f"ip {way.peer_address} {each['status']['podIP']} ", each


def _is_peer(peer: dict, metadata: dict, home: str, namespaces: dict[str, dict]) -> bool:
    theirs = metadata["namespace"]
    if "namespaceSelector" in peer:
        # Servers before 1.21 do not label a namespace with its name.
        labels = {"kubernetes.io/metadata.name": theirs} | namespaces.get(theirs, {})
        near = _selects(peer["namespaceSelector"], labels)
    else:
        near = theirs == home
    return near and _selects(peer.get("podSelector", {}), metadata.get("labels", {}))


def _port(port: dict, target: dict | None) -> str | None:
    """The match of one of a rule's ports; None for a name that none of the target's ports has."""
    number = port.get("port")
    if number is None:
        return f"ip protocol {port['protocol'].lower()} " if port else ""
    if isinstance(number, str):
        containers = target["spec"]["containers"] if target else ()
        ports = (each for container in containers for each in container.get("ports", ()))
        number = next((each["containerPort"] for each in ports if each.get("name") == number), None)
        if number is None:
            return None
    last = f"-{port['endPort']}" if "endPort" in port else ""
    return f"{port.get('protocol', 'TCP').lower()} dport {number}{last} "


def _selects(selector: dict, labels: dict[str, str]) -> bool:
    return selector.get("matchLabels", {}).items() <= labels.items() and all(
        _holds(each, labels.get(each["key"])) for each in selector.get("matchExpressions", ())
    )


def _holds(expression: dict, value: str | None) -> bool:
    match expression["operator"]:
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "In":
            return value in expression["values"]
        case _:  # NotIn
            return value not in expression["values"]


def main(kubeconfig: Path) -> None:
    api, changes = Api(kubeconfig), SimpleQueue()
    objects_by_path: dict[str, Objects] = {_PODS: {}, _NAMESPACES: {}, _POLICIES: {}}
    unknown = {*objects_by_path}
    applied = ""
    for path, into in objects_by_path.items():
        api.follow_beside(path, into, changes.put)
    while True:
        unknown.discard(changes.get())
        if unknown or not changes.empty():
            continue
        pods, namespaces, policies = (list(objects.values()) for objects in objects_by_path.values())
        labels = {each["metadata"]["name"]: each["metadata"].get("labels", {}) for each in namespaces}
        rules = ruleset(pods, labels, policies)
        if rules != applied:
            subprocess.run(["nft", "-f", "-"], input=rules, text=True, check=True, timeout=_APPLY_S)
            applied = rules


if __name__ == "__main__":
    main(Path(sys.argv[1]))
