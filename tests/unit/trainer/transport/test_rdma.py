"""RDMA that a job asks for and NCCL would not use is told of, with what is in its way."""

import pytest
from tests.unit.api.manifests import job

from rlhf_api.contract.run import RunConfig
from rlhf_api.roles import Role
from rlhf_trainer.transport.rdma import asked_for, hindrance, over_tcp

HERE = "libc.so.6"
"""A library that can be loaded."""
RDMA = "spec.trainer.pods.resources={limits: {rdma/hca_shared_devices_a: '1'}}"


def device(root, state="4: ACTIVE", uverbs=True):
    port = root / "sys/class/infiniband/mlx5_0/ports/1"
    port.mkdir(parents=True)
    (port / "state").write_text(f"{state}\n")
    if uverbs:
        (root / "dev/infiniband").mkdir(parents=True)
        (root / "dev/infiniband/uverbs0").touch()
    return root


def run_config(*overrides: str) -> RunConfig:
    return RunConfig(job="job", spec=job(*overrides).spec, workdir="/w")


@pytest.mark.parametrize(
    ("overrides", "environ", "requested"),
    [
        ((RDMA,), {}, "rdma/hca_shared_devices_a"),
        (("spec.pods.resources={limits: {nvidia.com/roce_gdr: '1'}}",), {}, "nvidia.com/roce_gdr"),
        ((), {"NCCL_IB_HCA": "mlx5"}, "NCCL_IB_HCA"),
        ((), {"NCCL_NET": "IB"}, "NCCL_NET"),
        (("spec.pods.resources={limits: {cpu: '4', memory: 8Gi}}",), {"NCCL_NET": "Socket"}, None),
        (("spec.generator.pods.resources={limits: {rdma/ib: '1'}}",), {}, None),
    ],
)
def test_what_asks_for_rdma(overrides, environ, requested):
    assert asked_for(run_config(*overrides), Role.TRAINER, environ) == requested


def test_nothing_is_in_the_way_of_an_active_device(tmp_path):
    assert hindrance({}, device(tmp_path), HERE) is None


@pytest.mark.parametrize(
    ("environ", "made", "library", "message"),
    [
        ({"NCCL_IB_DISABLE": "1"}, device, HERE, "NCCL_IB_DISABLE is 1"),
        ({"NCCL_NET": "Socket"}, device, HERE, "NCCL_NET is Socket"),
        ({}, device, "libnothing.so.1", "libnothing.so.1 cannot be loaded"),
        ({}, lambda root: root, HERE, "no device in /sys/class/infiniband"),
        ({}, lambda root: device(root, state="1: DOWN"), HERE, "no port of mlx5_0 is active"),
        ({}, lambda root: device(root, uverbs=False), HERE, "no /dev/infiniband/uverbs"),
    ],
    ids=["switched off", "sockets", "library", "no device", "no active port", "not in the pod"],
)
def test_what_is_in_the_way_is_named(tmp_path, environ, made, library, message):
    assert message in hindrance(environ, made(tmp_path), library)


def test_a_job_that_does_not_ask_is_told_nothing():
    assert over_tcp(run_config(), Role.TRAINER, {"NCCL_IB_DISABLE": "1"}) is None
    message = over_tcp(run_config(RDMA), Role.TRAINER, {"NCCL_IB_DISABLE": "1"})
    assert message.startswith("NCCL goes over TCP though the job asks for RDMA (rdma/hca_shared_devices_a): ")
