"""The names of vLLM's options that are read off its source are those of its parser, which names the field of others."""

import pytest
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.utils.argparse_utils import FlexibleArgumentParser

from rlhf_api.errors.problem import InvalidJob
from rlhf_api.roles import Role
from rlhf_api.rules.engines.vllm_options import _options
from rlhf_trainer.engines.vllm.serve.refusal import refusals


def test_every_option_of_the_parser_is_known():
    parser = make_arg_parser(FlexibleArgumentParser())
    words = [word for action in parser._actions for word in action.option_strings if word.startswith("--")]
    names = {word.removeprefix("--") for word in words}
    assert len(names) > 200
    assert {name for name in names if name.removeprefix("no-") not in _options()} == set()


def test_what_the_parser_refuses_is_the_fields(monkeypatch):
    monkeypatch.setattr(FlexibleArgumentParser, "error", FlexibleArgumentParser.error)  # put back in the end
    parser = AsyncEngineArgs.add_cli_args(FlexibleArgumentParser())
    with pytest.raises(SystemExit):
        parser.parse_args(["--max-num-seqs", "many"])
    refused = (
        r"^spec\.reference\.engineArguments: vLLM refuses its options: argument --max-num-seqs: .*'many'$"
    )
    with pytest.raises(InvalidJob, match=refused), refusals(Role.REFERENCE, "another engine"):
        parser.parse_args(["--max-num-seqs", "many"])
