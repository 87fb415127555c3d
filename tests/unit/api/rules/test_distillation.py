"""Distillation: the teacher is the reference, a reward is optional, and what cannot act is refused."""

import pytest
from tests.unit.api.manifests import job

from rlhf_api.errors.problem import InvalidJob
from rlhf_api.estimate.resources import plan
from rlhf_api.estimate.sizes import Size
from rlhf_api.graph import REFERENCE, Infer
from rlhf_api.roles import Role

TAUGHT = (
    *("spec.algorithm=distillation", "spec.ppo={}", "spec.distillation={minibatchSize: 8}"),
    "spec.model={policy: org/policy, reference: org/teacher}",
)
ALONE = (*TAUGHT, "spec.reward={}")
FUNCTION = "spec.reward={{functions: [{{function: 'a:b', weight: {}}}]}}"
GIVEN = (
    *("spec.distillation.teacherTopK=8", "spec.distillation.givenShare=0.5", "spec.sampling={}"),
    "spec.data.maxResponseLength=256",
)
EVALUATED = "spec.evaluation={data: [a.jsonl], function: 'a:b'}"


def test_without_a_reward_there_is_no_reward_role_and_one_response_is_enough():
    graph = job(*ALONE).spec.graph
    assert graph.roles == (Role.TRAINER, Role.GENERATOR, Role.REFERENCE)
    (advantages,) = [node for node in graph.prepare if "advantages" in node.writes]
    assert advantages.reads == ("logprobs", "reference_logprobs")


def test_with_a_reward_its_scores_are_compared_within_groups():
    graph = job(*TAUGHT, "spec.sampling={responsesPerPrompt: 2}").spec.graph
    assert Role.REWARD in graph.roles
    (advantages,) = [node for node in graph.prepare if "advantages" in node.writes]
    assert advantages.reads == ("scores", "position", "logprobs", "reference_logprobs")


def test_with_top_tokens_the_reference_is_asked_for_them_and_the_loss_reads_them():
    top = ("spec.distillation.teacherTopK=8", "spec.reference.engine=vllm", "spec.sampling={}")
    graph = job(*ALONE, *top).spec.graph
    assert graph.roles == (Role.TRAINER, Role.GENERATOR, Role.REFERENCE)
    (inferred,) = [n for n in graph.prepare if isinstance(n, Infer) and n.model == REFERENCE]
    assert (inferred.output, inferred.writes) == ("top_logprobs", ("reference_top",))
    (advantages,) = [node for node in graph.prepare if "advantages" in node.writes]
    assert advantages.reads == ()
    assert "reference_top" in graph.train[0].reads


def test_with_given_responses_rows_have_answers_and_functions_that_measure_are_allowed():
    spec = job(*ALONE, *GIVEN, FUNCTION.format(0.0)).spec
    assert spec.graph.rows == "responses"
    assert spec.graph.generates
    assert "given" in spec.graph.source.writes
    assert Role.REWARD in spec.graph.roles


def test_a_student_with_an_adapter_has_the_teacher_and_not_its_own_base():
    graph = job(*ALONE, "spec.model.lora={policy: {rank: 2}}").spec.graph
    (inferred,) = [n for n in graph.prepare if isinstance(n, Infer) and "reference_logprobs" in n.writes]
    assert (inferred.model, inferred.base) == (REFERENCE, False)
    assert Role.REFERENCE in graph.roles


def test_the_plan_counts_the_teacher():
    given = (*ALONE, "spec.sampling={}", "spec.pods.gpu={count: 1, memoryGigabytes: 80}")
    spec = job(*given, "spec.reference={engine: vllm, tensorParallelSize: 2, pods: {gpu: {count: 2}}}").spec
    made = plan(spec, {"policy": Size(1.7e9), "reference": Size(32e9)})[Role.REFERENCE]
    assert made.gpus == 2
    assert made.memory == "32 of 80 GB without the KV cache: 32e9 parameters x 2 B / 2 GPUs"


@pytest.mark.parametrize("weight", [0.0, 1.0])
def test_a_function_of_weight_0_needs_no_group_and_lets_held_out_responses_be_judged(weight):
    given = (*TAUGHT, FUNCTION.format(weight), EVALUATED)
    if weight == 0:
        assert Role.REWARD in job(*given).spec.graph.roles
        return
    with pytest.raises(InvalidJob, match=r"^spec.sampling.responsesPerPrompt: .*; use at least 2"):
        job(*given)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("spec.model.reference=null",), "spec.model.reference: is required and missing: the teacher"),
        (("spec.distillation.klCoefficient=0",), "spec.distillation.klCoefficient: must be greater than 0"),
        (("spec.distillation.referenceEma=0.9",), "spec.distillation.referenceEma: puts the policy's moving"),
        (
            (
                "spec.distillation.gamma=0.5",
                "spec.distillation.klIn=loss",
                "spec.distillation.klEstimator=k3",
            ),
            "spec.distillation.gamma: discounts advantages, and with klIn loss or teacherTopK the teacher gives none",
        ),
        (
            ("spec.distillation.teacherTopK=8", "spec.distillation.gamma=0.5"),
            "spec.distillation.gamma: discounts advantages, and with klIn loss or teacherTopK the teacher gives none",
        ),
        (
            ("spec.distillation.teacherTopK=8", "spec.distillation.klIn=loss"),
            "klIn: applies only to an estimate from the sampled tokens, and the job has none: spec.distillation."
            "teacherTopK compares whole distributions; remove it; got 'loss'",
        ),
        (
            ("spec.distillation.beta=0.5",),
            "beta: applies only to a divergence over several tokens, and the job has none: spec.distillation.teacherT",
        ),
        (
            ("spec.distillation.teacherTopK=300",),
            "spec.distillation.teacherTopK: must be less than or equal to 256; got 300",
        ),
        (("spec.distillation.klIn=loss",), "spec.distillation.klEstimator: as a loss, k1 has an expected"),
        (
            ("spec.distillation.overlongBuffer=8",),
            "spec.distillation.overlongBuffer: changes or compares scores, and the job has no reward",
        ),
        (
            ("spec.distillation.dynamicSampling=1", "spec.sampling.responsesPerPrompt=2"),
            "spec.distillation.dynamicSampling: changes or compares scores, and the job has no reward",
        ),
        (
            ("spec.reward.scale=2.0",),
            "none of spec.reward.functions, spec.reward.models and spec.model.reward scores responses",
        ),
        (
            ("spec.distillation.givenShare=0.5",),
            "spec.distillation.givenShare: an estimate from single tokens is of tokens that the student sampled; set "
            "teacherTopK, or remove this; got 0.5",
        ),
        (
            (*GIVEN, "spec.sampling.responsesPerPrompt=2"),
            "spec.sampling.responsesPerPrompt: with spec.distillation.givenShare each prompt has one response; use 1; "
            "got 2",
        ),
        (
            (*GIVEN, FUNCTION.format(1.0)),
            "spec.distillation.givenShare: given responses have no group to be compared with",
        ),
        (
            (*GIVEN, "spec.distillation.givenShare=0.999"),
            "spec.distillation.givenShare: leaves none of 8 prompts to the student",
        ),
        (
            (*GIVEN, "spec.data.maxResponseLength=300"),
            "spec.data.maxResponseLength: given responses are trained on beside sampled ones; use at most 256 "
            "(sampling.maxNewTokens), or raise that; got 300",
        ),
        (
            (*GIVEN, "spec.replay.maxReplayEpisode=2"),
            "spec.replay.maxReplayEpisode: is for responses that were all sampled; remove it, or ",
        ),
        (
            (*GIVEN, "spec.replay.streamDataLoaderType=dynamic"),
            "spec.replay.streamDataLoaderType: is for responses that were all sampled; remove it",
        ),
        (
            (EVALUATED,),
            "spec.evaluation.function: runs in the reward role, and the job has none: set spec.rew",
        ),
    ],
)
def test_what_cannot_act_is_refused(overrides, message):
    with pytest.raises(InvalidJob) as refused:
        job(*ALONE, *overrides)
    assert message in str(refused.value)
