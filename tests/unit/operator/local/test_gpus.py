import os

import pytest

from rlhf_api.contract.run import Process, RunConfig, places, roles_of
from rlhf_api.errors.problem import InvalidJob
from rlhf_api.manifest.load import parse
from rlhf_api.roles import Role
from rlhf_api.spec import Spec
from rlhf_operator.local.resources import gpus


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


def config(spec: Spec, *, shared: bool = False) -> RunConfig:
    return RunConfig(job="job", spec=spec, workdir="/w", shared_gpus=shared)


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
    return {
        place.name: gpus.variables(config(spec), place, names).get(gpus.VISIBLE, "all") for place in places
    }


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
    gpus_by_name = {place.name: gpus.variables(config(pair), place, names)[gpus.VISIBLE] for place in places}
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


def test_numbers_beside_uuids_are_refused(driver):
    """Only CUDA could tell which of them are one GPU."""
    driver("printf '0\\n1\\n'")
    with pytest.raises(InvalidJob, match="may name one GPU twice; use either; got 0, GPU-8932f937"):
        gpus.present({gpus.VISIBLE: "0,GPU-8932f937"})


def test_a_gpu_that_is_named_twice_is_shared_by_processes_that_nccl_takes_for_two_hosts():
    room = {"engineArguments": {"kv-cache-memory-bytes": 1 << 30, "gpu-memory-utilization": 0.2}}
    job = spec(generator=room)
    gpus.check(job, ["3", "3"])
    places = [Process(role, 0, 1, "127.0.0.1", "") for role in (Role.TRAINER, Role.GENERATOR)]
    variables = [gpus.variables(config(job), place, ["3", "3"]) for place in places]
    assert [each[gpus.VISIBLE] for each in variables] == ["3", "3"]
    assert variables[0][gpus.HOST] != variables[1][gpus.HOST]
    assert gpus.HOST not in gpus.variables(config(job), places[0], ["3", "4"])


def test_what_cannot_share_a_gpu_is_refused_all_at_once():
    with pytest.raises(InvalidJob) as error:
        gpus.check(spec(trainer={"processesPerReplica": 2}), ["0", "0", "0"])
    assert "trainer-0 has a GPU twice (CUDA_VISIBLE_DEVICES: 0,0)" in str(error.value)
    assert "set kv-cache-memory-bytes" in str(error.value)


def shared_gpus(spec: Spec, count: int) -> dict[str, str]:
    """CUDA_VISIBLE_DEVICES of each process that shares a machine's `count` GPUs."""
    names = [str(i) for i in range(count)]
    processes = [
        Process(role, i, 1, "127.0.0.1", "", rank)
        for role in roles_of(spec)
        for i, rank in places(spec, role)
    ]
    each_one = {each.name: gpus.variables(config(spec, shared=True), each, names) for each in processes}
    return {name: variables[gpus.VISIBLE] for name, variables in each_one.items()}


SCORED = {"model": {"policy": "p", "reward": "r"}, "reward": {}}


def test_processes_that_share_one_gpu_are_all_on_it():
    assert shared_gpus(spec(**SCORED), 1) == {
        "trainer-0": "0",
        "generator-0": "0",
        "reward-0": "0",
        "reference-0": "0",
    }


@pytest.mark.parametrize("count", [2, 4, 8])
def test_every_shared_gpu_has_a_rank_and_an_engine_and_frozen_models_in_turn(count):
    made = spec(trainer={"processesPerReplica": count}, generator={"replicas": count}, **SCORED)
    every = [str(i) for i in range(count)]
    taken = shared_gpus(made, count)
    assert taken.pop("trainer-0") == ",".join(every)
    assert (taken.pop("reward-0"), taken.pop("reference-0")) == ("0", "1")
    assert list(taken.values()) == every


def test_a_part_of_an_engine_is_on_each_of_its_shared_gpus():
    made = spec(
        trainer={"replicas": 2, "processesPerReplica": 2},
        generator={"replicas": 2, "tensorParallelSize": 2},
        reference={"engine": "vllm", "tensorParallelSize": 2},
    )
    assert shared_gpus(made, 4) == {
        "trainer-0": "0,1",
        "trainer-1": "2,3",
        "generator-0": "0,1",
        "generator-1": "2,3",
        "reference-0": "0,1",
        "reward-0": "0",  # its functions need none of their own
    }


def test_frozen_models_take_the_gpus_behind_the_generators_first():
    made = spec(trainer={"processesPerReplica": 2}, generator={"replicas": 1}, **SCORED)
    taken = shared_gpus(made, 2)
    assert (taken["reference-0"], taken["reward-0"]) == ("0", "1")


def test_processes_that_share_gpus_by_their_placement_stay_one_host_to_nccl():
    """Weights within a GPU need no NCCL, and those for another one go by the fastest way."""
    made = config(spec(), shared=True)
    for role in (Role.TRAINER, Role.GENERATOR):
        assert gpus.HOST not in gpus.variables(made, Process(role, 0, 1, "127.0.0.1", ""), ["0", "1"])


def test_the_memory_of_gpus_is_that_of_the_smallest_less_what_the_driver_keeps(driver):
    driver(
        f'[ "$*" = "{" ".join(gpus.MEMORY[1:])}" ] && '
        "printf '0, GPU-a, 1000, 24\\n1, GPU-b, 2000, 24\\n2, GPU-c, [N/A], [N/A]\\n'"
    )
    assert gpus.memory(["1"]) == gpus.memory(["GPU-b"]) == 1976 << 20
    assert gpus.memory(["0", "1"]) == 976 << 20
    assert gpus.memory(["1", "2"]) is None, "one of them is not known"
    assert gpus.memory(["MIG-GPU-a/1/0"]) is None
    assert gpus.memory([]) is None
    driver("exit 9")
    assert gpus.memory(["0"]) is None
