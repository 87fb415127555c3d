"""A reference and a reward model by vLLM: equal to transformers', gone with their engines, and what is refused."""

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
import torch
from tests.support.forked.forks import forked
from tests.support.kubernetes.kube import eventually
from tests.support.tiny.models import byte_tokenizer, tiny_model
from tests.unit.trainer.engines.frozen_worker import COUNT, LONGEST, TEMPERATURE
from transformers import LlamaForCausalLM, LlamaForSequenceClassification

from rlhf_api.contract.run import RunConfig
from rlhf_api.errors.problem import InvalidJob
from rlhf_api.roles import Role
from rlhf_trainer.engines.vllm.frozen import most_probable, response_logprobs
from rlhf_trainer.maths.outputs import ResponseLogprobs, TopLogprobs
from rlhf_trainer.models.forward.inference import Forward, infer
from rlhf_trainer.models.pretrained.job_models import check_served
from rlhf_trainer.scoring.rewards import forward_scores
from rlhf_trainer.tensors.records import Sequences
from rlhf_trainer.tensors.sampling_mask import LEFT_OUT

pytestmark = pytest.mark.slow
TOKENIZER = byte_tokenizer()


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Holds a policy, a reward model that begins with it, and a job of both."""
    folder: Path = tmp_path_factory.mktemp("frozen")
    tiny_model(folder / "policy", tie=False, seed=0)
    torch.manual_seed(0)
    reward = LlamaForSequenceClassification.from_pretrained(folder / "policy", num_labels=1)
    torch.nn.init.normal_(reward.score.weight, std=0.5)
    reward.save_pretrained(folder / "reward")
    TOKENIZER.save_pretrained(folder / "reward")
    spec = {
        "algorithm": "ppo",
        "steps": 1,
        "model": {"policy": str(folder / "policy"), "reward": str(folder / "reward"), "dtype": "float32"},
        "data": {"train": ["x.jsonl"], "promptsPerStep": 64},
        "reference": {"engine": "vllm"},
        "reward": {"engine": "vllm"},
    }
    (folder / "run.json").write_text(json.dumps({"job": "j", "workdir": str(folder), "spec": spec}))
    return folder


@pytest.fixture(scope="module")
def rows() -> list[tuple[list[int], list[int]]]:
    """Prompts and responses of 2 tokens up to the longest."""
    generator = torch.Generator().manual_seed(0)
    sizes = ((1, 1), (5, 9), (40, 30), (2, 60), (LONGEST - 21, 20))
    return [tuple(torch.randint(256, (n,), generator=generator).tolist() for n in size) for size in sizes]


def test_what_vllm_computes_is_what_transformers_does_and_a_dead_engine_ends_its_role(
    folder,
    rows,
    tmp_path,
    forked_programs,  # noqa: ARG001
):
    flags = [place % 3 != 1 for _, response in rows for place in range(len(response))]
    (folder / "sequences.json").write_text(json.dumps({"rows": rows, "sampled": flags}))
    log = (tmp_path / "log").open("w")
    environ = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tests.unit.trainer.engines.frozen_worker", str(folder)]
    worker = subprocess.Popen(command, env=environ, stdout=log, stderr=log, start_new_session=True)

    def written(name: str):
        file = folder / name
        assert worker.poll() is None or file.exists(), (tmp_path / "log").read_text()[-3000:]
        return json.loads(file.read_text()) if file.exists() else None

    try:
        reference = eventually(lambda: written("reference.json"), "log-probabilities", 240)
        reward = eventually(lambda: written("reward.json"), "scores", 240)
        sequences = Sequences.pack(rows)
        policy = Forward(LlamaForCausalLM.from_pretrained(folder / "policy").eval(), 512, 0)
        replied = replace(sequences, sampled=torch.tensor(flags))
        expected = infer(policy, replied, ResponseLogprobs(TEMPERATURE), replied.response_lengths)
        assert torch.allclose(torch.tensor(reference["found"]), expected, rtol=0, atol=1e-5)
        top = TopLogprobs(TEMPERATURE, count=COUNT)
        most = infer(policy, replied, top, replied.response_lengths)
        given = torch.tensor(reference["top"])
        assert torch.allclose(given[:, :COUNT], most[:, :COUNT], rtol=0, atol=1e-5)
        assert (given[:, COUNT:] == most[:, COUNT:]).float().mean() > 0.99  # of equal ones either comes first
        judge = LlamaForSequenceClassification.from_pretrained(folder / "reward").eval()
        scores = forward_scores(judge, 512, TOKENIZER.pad_token_id)(sequences)
        assert torch.allclose(torch.tensor(reward["found"]), scores, rtol=0, atol=1e-5)
        assert (reference["trouble"], reward["trouble"]) == ("", "")
        for each in (reference, reward):
            children = psutil.Process(each["pid"]).children()
            (engine,) = [child for child in children if "EngineCore" in child.cmdline()[0]]
            assert forked(engine.pid, each["pid"])  # it imports nothing anew
            engine.kill()
        assert eventually(lambda: written("codes.json"), "the ends of both", 240) == [70, 70]
        for role in ("reference", "reward"):
            cause = (folder / f"{role}.end").read_text()
            assert "vLLM's process EngineCore" in cause
            assert "was ended by SIGKILL" in cause
    finally:
        with suppress(ProcessLookupError):  # it has ended by itself
            os.killpg(worker.pid, signal.SIGKILL)
        worker.wait(30)


def token(logprob: float):
    return SimpleNamespace(logprob=logprob)


def test_log_probabilities_are_those_of_the_response():
    prompt_logprobs = [None, {5: token(-1.0)}, {9: token(-0.1), 6: token(-2.0)}]
    assert response_logprobs(prompt_logprobs, [4, 5, 6], 1) == [-1.0, -2.0]
    assert most_probable(prompt_logprobs, [4, 5, 6], 2, 3) == [[-0.1, -2.0, LEFT_OUT, 9.0, 6.0, 0.0]]
    with pytest.raises(RuntimeError, match="no finite log-probability at place 0"):
        most_probable(prompt_logprobs, [4, 5, 6], 0, 3)


@pytest.mark.parametrize(
    ("prompt_logprobs", "says"),
    [
        (None, "no log-probabilities for 2 tokens"),
        ([None], "1 log-probabilities for 2 tokens"),
        ([None, None], "token 5 at place 1"),
        ([None, {6: token(-1.0)}], "token 5 at place 1"),
        ([None, {5: token(float("nan"))}], "no finite log-probability of token 5"),
    ],
)
def test_what_vllm_gives_is_not_believed_unseen(prompt_logprobs, says):
    with pytest.raises(RuntimeError, match=says):
        response_logprobs(prompt_logprobs, [4, 5], 1)


@pytest.mark.parametrize(
    ("role", "path", "says"),
    [
        (
            Role.REWARD,
            "policy",
            "LlamaForCausalLM; engine vllm needs a trained sequence-classification model",
        ),
        (
            Role.REFERENCE,
            "reward",
            "LlamaForSequenceClassification; engine vllm needs a causal language model",
        ),
    ],
)
def test_a_model_whose_head_vllm_would_make_up_is_refused(folder, role, path, says):
    written = json.loads((folder / "run.json").read_text())
    written["spec"]["model"][role.value] = str(folder / path)
    with pytest.raises(InvalidJob, match=says):
        check_served(RunConfig.model_validate_json(json.dumps(written)), role, TOKENIZER, LONGEST)
    written["spec"]["model"][role.value] = str(folder / ("reward" if role is Role.REWARD else "policy"))
    assert check_served(RunConfig.model_validate_json(json.dumps(written)), role, TOKENIZER, LONGEST) == 256
    with pytest.raises(InvalidJob, match="257 tokens do not fit a model with 256 positions"):
        check_served(RunConfig.model_validate_json(json.dumps(written)), role, TOKENIZER, 257)
