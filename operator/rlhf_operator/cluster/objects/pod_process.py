"""A role's process in a pod: its addresses and environment."""

import math
from typing import Any

from rlhf_api.contract.run import (
    Process,
    RunConfig,
    environment,
    listens,
    pods_each,
    replicas,
    roles_of,
    shares_pod,
)
from rlhf_api.estimate.sharing.places import shared_places
from rlhf_api.host.job_files import FOLDER
from rlhf_api.roles import Role
from rlhf_api.sections.pods import PodSettings, amount
from rlhf_api.spec import Spec

from ...job.names import pod_name, service_name, token_name
from ...job.ports import MASTER_PORT, PORT, group_port, http_port, master_port
from .pod_volumes import CARRIED, CONFIG_DIRECTORY, RESUME_CONFIG, START_CONFIG, WORKSPACE

Body = dict[str, Any]

TOKEN = "token"
"""The key of a role's token in its Secret."""


def shares_node_network(pods: PodSettings) -> bool:
    """True if the template sets `hostNetwork`."""
    spec = pods.template.get("spec")
    return isinstance(spec, dict) and spec.get("hostNetwork") is True


def process_of(config: RunConfig, role: Role, index: int, uid: str, *, rank: int, on_node: bool) -> Process:
    """The role's process, with the address it listens on and the rendezvous of its group at the group's first pod;
    `on_node`: in the node's network. Pods find each other by their DNS names in the headless service."""
    group = pods_each(config.spec, role) > 1
    first = pod_name(config.job, role, index) if group else pod_name(config.job, Role.TRAINER, 0)
    host = f"{first}.{service_name(config.job)}"
    if pod_name(config.job, role, index, rank) == first:
        # The service does not resolve its own pod yet, and in the node's network the hostname is the node's: the
        # kubelet
        # substitutes the address.
        host = "$(RLHF_HOST)" if on_node or group else first
    port, meeting = PORT + place_in_pod(config.spec, role, index), MASTER_PORT
    if on_node:
        port, meeting = http_port(uid, role, index), group_port(uid, index) if group else master_port(uid)
    return Process(role, index, port, "0.0.0.0", f"{host}:{meeting}", rank)


def place_in_pod(spec: Spec, role: Role, index: int) -> int:
    """Number of a process among those that share its pod, the trainer's first; 0 in a pod of its own."""
    if not shares_pod(spec):
        return 0
    return [(each, i) for each in roles_of(spec) for i in range(replicas(spec, each))].index((role, index))


def ports(config: RunConfig, process: Process, on_node: bool) -> list[Body]:
    """Ports of the role's container; in the node's network also its group's rendezvous, so that nothing else takes
    it.
    """
    meets = process.role is Role.TRAINER or pods_each(config.spec, process.role) > 1
    named = {"http": process.port} if process.role is Role.TRAINER or listens(process) else {}
    if on_node and meets and listens(process):
        named["rendezvous"] = int(process.master.rpartition(":")[2])
    return [{"name": name, "containerPort": port, "protocol": "TCP"} for name, port in named.items()]


def environment_of(
    config: RunConfig, process: Process, pods: PodSettings, uid: str, *, resume: bool
) -> list[Body]:
    """The contract's variables, with the pod's own address and the job's token by reference; `uid`: the job's."""
    file = RESUME_CONFIG if resume and process.role is Role.TRAINER else START_CONFIG
    variables = environment(
        config,
        process,
        config_file=f"{CONFIG_DIRECTORY}/{file}",
        termination_log="/dev/termination-log",
    )
    # Use the cache as it is: the same revision for all roles and restarts.
    hub = {"HF_HUB_CACHE": literal(pods.model_cache), "HF_HUB_OFFLINE": "1"} if pods.model_cache else {}
    given = config.spec.env
    fixed = {
        "HOME": "/tmp",
        "USER": "rlhf",  # which torch asks for; a user that the namespace assigns has no name
        "PYTHONUNBUFFERED": "1",
        "PYTHONPATH": WORKSPACE,
        **({FOLDER: CARRIED} if config.spec.workspace.files else {}),
        **hub,
        **_threads(pods),
        **{name: literal(v) if v == given.get(name) else v for name, v in variables.items()},
        **({"RLHF_RUN": uid} if process.role is Role.TRAINER else {}),
        **_gpus(config, process),
    }
    del fixed["RLHF_HOST"]
    return [
        own_address(),  # first, since other variables may reference it
        *({"name": name, "value": value} for name, value in fixed.items()),
        token_of(config, process.role, uid),
    ]


def own_address() -> Body:
    """The variable with the pod's own address."""
    return {"name": "RLHF_HOST", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}


def token_of(config: RunConfig, role: Role, uid: str) -> Body:
    """The variable with the role's token, by reference."""
    reference = {"name": token_name(config.job, uid, role), "key": TOKEN}
    return {"name": "RLHF_TOKEN", "valueFrom": {"secretKeyRef": reference}}


def _gpus(config: RunConfig, process: Process) -> dict[str, str]:
    """CUDA_VISIBLE_DEVICES: those of the pod's GPUs that a process has which shares them."""
    if not config.shared_gpu_count:
        return {}
    mine = shared_places(config.spec, config.shared_gpu_count)[process.role, process.index, process.rank]
    return {"CUDA_VISIBLE_DEVICES": ",".join(map(str, mine))}


def literal(value: str) -> str:
    """The value of a variable as a manifest means it: a kubelet would replace `$(NAME)`, and make `$` of `$$`."""
    return value.replace("$", "$$")


def _threads(pods: PodSettings) -> dict[str, str]:
    """OMP_NUM_THREADS: the pod's CPU limit or request; without either, torch uses all cores of the node."""
    cpus = pods.resources.limits.get("cpu") or pods.resources.requests.get("cpu")
    if cpus is None:
        return {}
    return {"OMP_NUM_THREADS": str(max(1, math.floor(amount(cpus))))}
