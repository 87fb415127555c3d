import os

import pytest

from rlhf_api.contract.run import Process
from rlhf_api.errors.problem import InvalidJob
from rlhf_api.manifest.load import parse
from rlhf_api.roles import Role
from rlhf_api.spec import Spec
from rlhf_operator.local import gpus


def spec(**sections) -> Spec:
    fields = {
        "algorithm": "ppo",
        "steps": 1,
        "model": {"policy": "p"},
        "data": {"train": ["f"], "promptsPerStep": 64},
        "reward": {"functions": [{"function": "a:b"}]},
    }
    document = {"apiVersion": "rlhf.dev/v1alpha1", "kind": "RLHFJob", "metadata": {"name": "job"}}
    return parse(document | {"spec": fields | sections}).spec


def visible_gpus(spec: Spec, count: int) -> dict[str, str]:
    """CUDA_VISIBLE_DEVICES of each process, on a machine with `count` GPUs."""
    each = [
        (Role.TRAINER, 0),
        (Role.GENERATOR, 0),
        (Role.GENERATOR, 1),
        (Role.REWARD, 0),
        (Role.REFERENCE, 0),
    ]
    places = [Process(role, i, 1, "127.0.0.1", "") for role, i in each]
    names = [str(i) for i in range(count)]
    return {place.name: gpus.variables(spec, place, names).get(gpus.VISIBLE, "all") for place in places}


def test_trainers_and_generators_share_no_gpu():
    two = spec(trainer={"processesPerReplica": 2}, generator={"replicas": 2, "tensorParallelSize": 2})
    assert visible_gpus(two, 8) == {
        "trainer-0": "0,1",
        "generator-0": "2,3",
        "generator-1": "4,5",
        "reward-0": "6",
        "reference-0": "7",
    }


def test_processes_of_one_generator_divide_its_gpus():
    pair = spec(generator={"replicas": 2, "tensorParallelSize": 4, "podsPerReplica": 2})
    places = [Process(Role.GENERATOR, i, 1, "127.0.0.1", "", rank) for i in range(2) for rank in range(2)]
    names = [str(i) for i in range(9)]
    gpus_by_name = {place.name: gpus.variables(pair, place, names)[gpus.VISIBLE] for place in places}
    assert gpus_by_name == {
        "generator-0": "1,2",
        "generator-0-1": "3,4",
        "generator-1": "5,6",
        "generator-1-1": "7,8",
    }
    with pytest.raises(InvalidJob, match="need 9 GPUs, this machine has 8"):
        gpus.check(pair, names[:8])


def test_where_none_is_left_scorers_sit_with_the_trainer():
    assert visible_gpus(spec(generator={"replicas": 2}), 3) == {
        "trainer-0": "0",
        "generator-0": "1",
        "generator-1": "2",
        "reward-0": "0",
        "reference-0": "0",
    }


def test_what_vllm_serves_has_gpus_of_its_own():
    one = {"engine": "vllm", "tensorParallelSize": 2}
    assert visible_gpus(spec(generator={"replicas": 2}, reference=one), 6) == {
        "trainer-0": "0",
        "generator-0": "1",
        "generator-1": "2",
        "reward-0": "5",
        "reference-0": "3,4",
    }
    with pytest.raises(InvalidJob, match="trainer, generator, reference need 4 GPUs, this machine has 3"):
        gpus.check(spec(reference=one), ["0", "1", "2"])


def test_without_gpus_nothing_is_set():
    assert set(visible_gpus(spec(), 0).values()) == {"all"}
    gpus.check(spec(), [])


def test_too_few_are_refused_before_anything_starts():
    gpus.check(spec(), ["0", "1"])
    with pytest.raises(InvalidJob, match="need 2 GPUs, this machine has 1"):
        gpus.check(spec(), ["0"])
    gpus.check(spec(generator={"sharedWithTrainer": True}), ["0"])


@pytest.fixture
def driver(tmp_path, monkeypatch):
    """Writes the `nvidia-smi` of a machine, a script."""
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)

    def write(script: str) -> None:
        (tmp_path / "nvidia-smi").write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / "nvidia-smi").chmod(0o755)
        gpus.listed.cache_clear()

    yield write
    gpus.listed.cache_clear()


def test_gpus_are_those_that_the_driver_lists(driver):
    driver(f'[ "$*" = "{" ".join(gpus.LIST[1:])}" ] && printf "0\\n1\\n"')
    assert gpus.present({}) == ["0", "1"]
    driver("echo No devices were found; exit 6")
    assert gpus.present({}) == []


def test_what_the_user_hid_stays_hidden(driver):
    driver("printf '0\\n1\\n2\\n3\\n'")
    assert gpus.present({gpus.VISIBLE: "3,1"}) == ["3", "1"]
    assert gpus.present({gpus.VISIBLE: ""}) == []
    assert gpus.present({gpus.VISIBLE: "-1"}) == []
    assert gpus.present({gpus.VISIBLE: "1,-1,0"}) == ["1"]  # CUDA sees none after it
    assert gpus.present({gpus.VISIBLE: "NoDevFiles"}) == []
    assert gpus.present({gpus.VISIBLE: "0, 2,"}) == ["0", "2"]
    uuids = "GPU-8932f937-d72c-4106-c12f-20bd9faed9f6,MIG-GPU-8932f937/1/0"
    assert gpus.present({gpus.VISIBLE: uuids}) == uuids.split(",")


def test_a_number_that_no_gpu_has_is_refused(driver):
    driver("printf '0\\n1\\n'")
    with pytest.raises(InvalidJob, match="CUDA_VISIBLE_DEVICES: the driver lists 0, 1; got 2"):
        gpus.present({gpus.VISIBLE: "1,2"})


def test_a_gpu_that_is_named_twice_is_shared_by_processes_that_nccl_takes_for_two_hosts():
    room = {"engineArguments": {"kv-cache-memory-bytes": 1 << 30, "gpu-memory-utilization": 0.2}}
    job = spec(generator=room)
    gpus.check(job, ["3", "3"])
    places = [Process(role, 0, 1, "127.0.0.1", "") for role in (Role.TRAINER, Role.GENERATOR)]
    variables = [gpus.variables(job, place, ["3", "3"]) for place in places]
    assert [each[gpus.VISIBLE] for each in variables] == ["3", "3"]
    assert variables[0][gpus.HOST] != variables[1][gpus.HOST]
    assert gpus.HOST not in gpus.variables(job, places[0], ["3", "4"])


def test_what_cannot_share_a_gpu_is_refused_all_at_once():
    with pytest.raises(InvalidJob) as error:
        gpus.check(spec(trainer={"processesPerReplica": 2}), ["0", "0", "0"])
    assert "trainer-0 has a GPU twice (CUDA_VISIBLE_DEVICES: 0,0)" in str(error.value)
    assert "set kv-cache-memory-bytes" in str(error.value)
