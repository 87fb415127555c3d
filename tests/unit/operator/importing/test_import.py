"""`rlhf import`: configurations of other systems become manifests, each of their names gets an answer, and no file of
theirs is run, however it is made."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic.alias_generators import to_camel
from tests.repository.test_coming_from import ALGORITHMS, ANSWERED

from rlhf_api.errors.problem import InvalidJob
from rlhf_api.manifest.load import load, parse
from rlhf_operator import cli
from rlhf_operator.importing.carry import carry
from rlhf_operator.importing.read_python import read_python
from rlhf_operator.importing.settings import Configuration, Setting

TRL = """
from trl import GRPOConfig, GRPOTrainer, DPOTrainer
MODEL = "Qwen/Qwen2.5-0.5B"
args = GRPOConfig(
    run_name="My GRPO", beta=0.04, epsilon=0.2, epsilon_high=0.28, loss_type="dapo", scale_rewards=False,
    num_generations=8, per_device_train_batch_size=16, gradient_accumulation_steps=4, num_iterations=2,
    max_steps=500, warmup_ratio=0.1, adam_beta2=0.99, bf16=True, fp16=False, cast_lm_head_to_fp32=True,
    gradient_checkpointing=True,
    use_vllm=True, vllm_gpu_memory_utilization=0.3, report_to=["wandb"], optim="adamw_8bit",
    optim_args="a=1", eval_steps=5,
    max_prompt_length=2 ** 8, num_gnerations=3,
)
DPOTrainer(model="another/model")
GRPOTrainer(model=MODEL, args=args, reward_funcs=score, train_dataset=load_dataset("x"), peft_config=LoraConfig(r=16))
"""
VERL = r"""
N=5
export MODEL=Qwen/Qwen3-8B
python3 -m verl.trainer.main_ppo \
    algorithm.adv_estimator=grpo algorithm.use_kl_in_reward=False \
    data.train_files=$HOME/gsm8k/train.parquet data.val_files=$DATA/test.parquet \
    data.train_batch_size=1024 data.max_response_length=512 data.truncation='error' \
    actor_rollout_ref.model.path=$MODEL actor_rollout_ref.rollout.n=${N} \
    actor_rollout_ref.actor.ppo_mini_batch_size=256 actor_rollout_ref.actor.optim.lr=1e-6 \
    actor_rollout_ref.actor.use_kl_loss=True actor_rollout_ref.actor.kl_loss_coef=0.001 \
    actor_rollout_ref.actor.kl_loss_type=low_var_kl actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=32 \
    actor_rollout_ref.ref.fsdp_config.param_offload=True critic.optim.lr=1e-5 \
    trainer.logger='["console","wandb"]' trainer.project_name=mine trainer.save_freq=-1 trainer.total_epochs=15 \
    algorithm.kl_ctrl.kl_coef=0.5 actor_rollout_ref.rollout.val_kwargs.n=1 \
    actor_rollout_ref.rollout.val_kwargs.top_p=0.5 $@
"""
OPENRLHF = r"""
read -r -d '' training_commands <<EOF
openrlhf.cli.train_ppo_ray \
   --pretrain OpenRLHF/Llama-3-8b --reward_pretrain OpenRLHF/rm --prompt_data org/prompts \
   --train_batch_size 128 --rollout_batch_size 1024 --n_samples_per_prompt 2 --generate_max_len 512 \
   --advantage_estimator gae --init_kl_coef 0.01 --eps_clip_low_high 0.2 0.28 --critic_learning_rate 9e-6 \
   --bf16 --adam_offload --zero_stage 3 --vllm_num_engines=4 --num_episodes 1 --use_wandb abcdef0123 \
   --input_key question --chosen_key chosen --param_dtype bf16 --micro_train_batch_size 8
EOF
    # --seed 3
torchrun --nproc-per-node 8 -m $training_commands
"""
PRIME = """
max_steps = 100
[model]
name = "Qwen/Qwen3-4B"
[wandb]
project = "reverse"
[orchestrator]
batch_size = 128
rollouts_per_example = 16
[orchestrator.sampling]
max_tokens = 64
[[orchestrator.env]]
id = "reverse-text"
[trainer.model.ac]
freq = 1
[trainer.optim]
lr = 3e-6
[ckpt]
interval = 20
"""
SFT = "model_name_or_path: org/m\nper_device_train_batch_size: 2\ngradient_accumulation_steps: 8\nmax_length: 1024\n"

CASES: dict[str, tuple[str, str, dict[str, Any], list[str], list[str]]] = {
    "trl.py": (
        TRL,
        "",
        {
            "algorithm": "dr_grpo",
            "steps": 250,
            "model": {
                "policy": "Qwen/Qwen2.5-0.5B",
                "dtype": "bfloat16",
                "float32Head": True,
                "lora": {"policy": {"rank": 16}},
            },
            "data": {"promptsPerStep": 8},
            "sampling": {"responsesPerPrompt": 8},
            "drGrpo": {
                "klCoefficient": 0.04,
                "clipRatio": 0.2,
                "clipRatioHigh": 0.28,
                "lossAggregation": "token",
                "minibatchSize": 64,
                "epochs": 2,
            },
            "optimizer": {"moments": "8bit", "warmupSteps": 50, "betas": [0.9, 0.99]},
            "trainer": {"gradientCheckpointing": "full"},
            "generator": {"engineArguments": {"gpu-memory-utilization": 0.3}},
            "trackers": [{"kind": "wandb"}],
        },
        [
            "use_vllm=true automatic: vLLM generates",
            "optim_args='a=1' not here: the optimizer is AdamW, or Muon for matrices",
            "max_prompt_length not read: an expression, '2 ** 8', which is not computed; set spec.data.maxPromptLength",
            "num_gnerations=3 unknown",
            "reward_funcs not read: an expression, 'score'",
            "train_dataset not read: an expression, \"load_dataset('x')\"",
            "gradient_accumulation_steps=4 counted in spec.data.promptsPerStep and spec.drGrpo.minibatchSize",
            "eval_steps=5 not here: there are no held-out rows",
        ],
        ["spec.reward", "spec.data"],
    ),
    "verl.sh": (
        VERL,
        "",
        {
            "algorithm": "grpo",
            "model": {"policy": "Qwen/Qwen3-8B"},
            "data": {
                "train": ["${HOME}/gsm8k/train.parquet"],
                "promptsPerStep": 1024,
                "overlong": "refuse",
            },
            "sampling": {"maxNewTokens": 512, "responsesPerPrompt": 5},
            "grpo": {"minibatchSize": 1280, "klIn": "loss", "klCoefficient": 0.001, "klEstimator": "k3"},
            "optimizer": {"learningRate": 1e-6},
            "trackers": [{"kind": "wandb", "project": "mine"}],
        },
        [
            "data.val_files not read: holds a variable or a command of the shell",
            "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=32 spec.trainer.microBatchTokens: not carried over: ",
            "actor_rollout_ref.ref.fsdp_config.param_offload=true not here: the reference is a role",
            "algorithm.kl_ctrl.kl_coef=0.5 spec.grpo.klCoefficient: not carried over: it is off",
            "actor_rollout_ref.rollout.val_kwargs.n=1 not here: there are no held-out rows",
            "actor_rollout_ref.rollout.val_kwargs.top_p=0.5 not here: an evaluation samples as training does",
            "trainer.save_freq=-1 spec.checkpoint.everySteps: not carried over: it is off",
            "trainer.total_epochs=15 spec.steps: not carried over: it counts passes",
        ],
        ["spec.steps", "spec.reward"],
    ),
    "openrlhf.sh": (
        OPENRLHF,
        "",
        {
            "algorithm": "ppo",
            "model": {"policy": "OpenRLHF/Llama-3-8b", "reward": "OpenRLHF/rm", "dtype": "bfloat16"},
            "data": {
                "train": ["hf://org/prompts:train"],
                "promptsPerStep": 1024,
                "columns": {"prompt": "question"},
            },
            "sampling": {"responsesPerPrompt": 2, "maxNewTokens": 512},
            "ppo": {"minibatchSize": 128, "klCoefficient": 0.01, "clipRatio": 0.2, "clipRatioHigh": 0.28},
            "optimizer": {"criticLearningRate": 9e-6},
            "trainer": {
                "deepspeed": {"zero_optimization": {"offload_optimizer": {"device": "cpu"}, "stage": 3}}
            },
            "generator": {"replicas": 4},
            "trackers": [{"kind": "wandb"}],
        },
        ["use_wandb=*** spec.trackers: ", "input_key='question' spec.data.columns.prompt: 'question'"],
        ["spec.steps"],
    ),
    "prime.toml": (
        PRIME,
        "",
        {
            "algorithm": "dr_grpo",
            "steps": 100,
            "model": {"policy": "Qwen/Qwen3-4B"},
            "data": {"promptsPerStep": 8},
            "sampling": {"responsesPerPrompt": 16, "maxNewTokens": 64},
            "drGrpo": {"minibatchSize": 128},
            "optimizer": {"learningRate": 3e-6},
            "trainer": {"gradientCheckpointing": "full"},
            "checkpoint": {"everySteps": 20},
            "trackers": [{"kind": "wandb", "project": "reverse"}],
        },
        [
            'orchestrator.env=[{"id": "reverse-text"}] not here: an environment of verifiers is '
            "spec.environment: {path: verifiers, "
        ],
        ["spec.reward", "spec.data"],
    ),
    "sft.yaml": (
        SFT,
        "sft",
        {
            "algorithm": "sft",
            "model": {"policy": "org/m"},
            "data": {"promptsPerStep": 16, "maxPromptLength": 1024, "maxResponseLength": 1024},
        },
        ["gradient_accumulation_steps=8 counted in spec.data.promptsPerStep"],
        ["spec.steps", "spec.data"],
    ),
}


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", CASES)
def test_a_configuration_becomes_a_manifest_with_what_is_missing(name, capsys):
    text, algorithm, spec, report, missing = CASES[name]
    Path(name).write_text(text)
    chosen = ["--algorithm", algorithm] if algorithm else []
    assert cli.main(["import", name, *chosen]) == 0
    printed = capsys.readouterr()
    assert yaml.safe_load(printed.out)["spec"] == spec
    lines = [" ".join(line.split()) for line in printed.err.splitlines()]
    for line in report:
        assert any(each.partition(" ")[2].startswith(line) for each in lines), line
    named = [line.removeprefix("missing: ").partition(": ")[0] for line in lines if "missing: " in line[:9]]
    assert named == missing
    with pytest.raises(InvalidJob) as error:  # the manifest is one that is read, and lacks just that
        parse(yaml.safe_load(printed.out))
    assert [problem.where for problem in error.value.problems] == missing
    assert "abcdef0123" not in printed.out + printed.err


def test_a_whole_configuration_becomes_a_valid_manifest_of_its_own_file(capsys):
    flags = "--model_name_or_path org/m --dataset_name rows.jsonl --max_steps 10 --report_to none"
    Path("run.sh").write_text(f"trl dpo {flags} --beta 0.2 --loss_type ipo\n")
    assert cli.main(["import", "run.sh", "-o", "job.yaml"]) == 0
    assert capsys.readouterr().out.endswith("wrote job.yaml\n")
    spec = load(Path("job.yaml")).spec
    assert (spec.dpo.beta, spec.dpo.loss, spec.steps, spec.trackers) == (0.2, "ipo", 10, ())
    assert "# beta\n" in Path("job.yaml").read_text()
    Path("job.yaml").write_text("mine")
    assert cli.main(["import", "run.sh", "-o", "job.yaml"]) == 2
    assert Path("job.yaml").read_text() == "mine"


@pytest.mark.parametrize(
    ("algorithm", "more", "prompts", "minibatch"),
    [
        ("ppo", {"num_mini_batches": 4}, 32, 8),
        ("grpo", {"num_generations": 4, "steps_per_generation": 4}, 4, 8),
        ("grpo", {"num_generations": 4, "generation_batch_size": 32}, 8, 8),
        ("dpo", {}, 8, None),
        ("online_dpo", {}, 8, 16),
    ],
)
def test_batches_of_trl_are_products(algorithm, more, prompts, minibatch):
    given = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2, **more}
    settings = tuple(Setting(name, value, "file") for name, value in given.items())
    spec = carry(Configuration("TRL", settings), algorithm).document["spec"]
    assert spec["data"]["promptsPerStep"] == prompts
    assert spec.get(to_camel(algorithm), {}).get("minibatchSize") == minibatch


@pytest.mark.parametrize("algorithm", ["ppo", "online_dpo"])
def test_a_penalty_without_an_end_token_is_one_of_the_last_token(algorithm):
    settings = (Setting("missing_eos_penalty", 1.5, "file"),)
    spec = carry(Configuration("TRL", settings), algorithm).document["spec"]
    assert spec[to_camel(algorithm)] == {"overlongBuffer": 1, "overlongPenalty": 1.5}


def test_a_list_of_reward_models_is_told_where_they_belong():
    (row,) = carry(Configuration("OpenRLHF", (Setting("reward_pretrain", "a/b,c/d", "file"),)), "ppo").rows
    assert "not carried over: it names several: give each a name in spec.reward.models" in row.text


def test_a_script_of_online_dpo_has_pairs_and_no_judge():
    text = "OnlineDPOTrainer(model='m/m', judge=judge, args=OnlineDPOConfig(beta=0.2, loss_type='ipo'))"
    configuration = read_python(text, "a.py")
    assert configuration.algorithm == "online_dpo"
    made = carry(configuration)
    assert made.document["spec"]["onlineDpo"] == {"beta": 0.2, "loss": "ipo"}
    (judge,) = [row for row in made.rows if row.setting.name == "judge"]
    assert judge.text.startswith("not here: rewards score each response by itself")


@pytest.mark.parametrize("value", [1, True, 0.5, "x", None, ["a"], {"a": 1}], ids=str)
@pytest.mark.parametrize("heading", ALGORITHMS)
def test_every_name_of_the_page_gets_an_answer_whatever_its_value(heading, value):
    names = [name for at, row in ANSWERED if at == heading for name in re.findall(r"`([\w.]+)`", row[0])]
    settings = tuple(Setting(name, value, "file") for name in names)
    system = heading if heading in ("verl", "OpenRLHF", "prime-rl") else "TRL"
    rows = carry(Configuration(system, settings), ALGORITHMS[heading]).rows
    assert [row.setting.name for row in rows] == names
    assert [row.setting.name for row in rows if row.text == "unknown" or not (row.fields or row.text)] == []


@pytest.mark.parametrize(
    ("settings", "spec"),
    [
        ({"adv_estimator": "gae"}, {"algorithm": "ppo"}),
        ({"advantage_estimator": "group_norm"}, {"algorithm": "grpo"}),
        ({"adv_estimator": "grpo", "norm_adv_by_std_in_grpo": False}, {"algorithm": "dr_grpo"}),
        (
            {"adv_estimator": "grpo", "scale_rewards": "batch"},
            {"algorithm": "grpo", "grpo": {"standardDeviation": "batch"}},
        ),
        (
            {"adv_estimator": "grpo", "multi_objective_aggregation": "sum_then_normalize"},
            {"algorithm": "grpo", "grpo": {"normalize": "sum"}},
        ),
        (  # TRL then divides by the group's deviation, whatever scale_rewards says
            {
                "adv_estimator": "grpo",
                "scale_rewards": "none",
                "multi_objective_aggregation": "normalize_then_sum",
            },
            {"algorithm": "grpo"},
        ),
        ({"adv_estimator": "grpo", "loss_mode": "gspo"}, {"algorithm": "gspo"}),
        ({"adv_estimator": "grpo", "loss_type": "cispo"}, {"algorithm": "cispo"}),
        (
            {"advantage_estimator": "reinforce_baseline"},
            {"algorithm": "reinforce_pp", "reinforcePp": {"groupBaseline": True}},
        ),
    ],
    ids=lambda part: str(part.get("algorithm", "")),
)
def test_the_algorithm_is_that_of_its_deciding_settings(settings, spec):
    given = tuple(Setting(name, value, "file") for name, value in settings.items())
    carried = carry(Configuration("verl", given)).document["spec"]
    assert {key: carried[key] for key in spec} == spec


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.py", b"\xff\xfe\x00", "is not UTF-8 text"),
        ("a.py", b"(" * 1000, "a.py:1: is not valid Python: too many nested parentheses"),
        ("a.py", b"x = " + b"-" * 100_000 + b"1", "is nested too deeply"),
        ("a.py", b"GRPOConfig(beta=" + b"+".join([b"1"] * 100_000) + b")", "is nested too deeply"),
        ("a.py", b"print(1)", "has no call of GRPOConfig"),
        (
            "a.py",
            b"GRPOConfig(beta=1); SFTConfig(seed=2)",
            "configures grpo and sft; choose one with --algorithm",
        ),
        ("a.py", b"GRPOConfig(beta=open('run', 'w'))", "sets nothing that a manifest has"),
        ("a.sh", b"echo 'x", "has no command line"),
        (
            "a.sh",
            b"verl.x algorithm.adv_estimator=gae x.lr=$(touch run) x.n=`touch run`",
            "sets nothing that a manifest has",
        ),
        ("a.sh", b"\n".join(b"--a%d 1" % i for i in range(1001)), "sets more than 1,000 names"),
        ("a.toml", b"[a" + b".a" * 10_000 + b"]", "sets nothing that a manifest has"),
        ("a.toml", b"a = ", "is not valid TOML"),
        ("a.yaml", b"- a", "must be one object of settings; it holds a list"),
        ("a.yaml", b"a: " + b"[" * 5000, "is not valid YAML: is nested too deeply"),
        ("a.yaml", b"beta: 1", "--algorithm: is needed"),
        ("a.csv", b"a", "must end with .py or .yaml (TRL)"),
        ("a.toml", b" " * ((1 << 20) + 1), "is larger than 1 MiB"),
    ],
    ids=lambda part: re.sub(r"\W+", "-", part)[:40] if isinstance(part, str) else "",
)
def test_a_file_that_cannot_be_read_so_is_one_error_and_nothing_of_it_runs(
    name, content, message, folder, capsys
):
    Path(name).write_bytes(content)
    assert cli.main(["import", name]) == 2
    errors = capsys.readouterr().err.splitlines()
    assert len(errors) == 1
    assert message in errors[0]
    assert [file.name for file in folder.iterdir()] == [name]
