"""Has vLLM go on with the structured output of a response that another request began; imports little, as each of its
processes runs it."""

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vllm.v1.request import Request
    from vllm.v1.structured_output.backend_types import StructuredOutputGrammar

CONSTRAINED = "rlhf-constrained"
"""Key of a request's `extra_args`: the number of its prompt's last tokens that the constraint has read."""


def read_begun_responses() -> None:
    """Has vLLM's grammar of a request read these tokens first: vLLM itself knows responses that one request samples
    whole, and would have the rest of one begin anew. Does nothing in a process that has no engine, where the import
    would take seconds."""
    if "vllm.v1.structured_output" not in sys.modules:
        return
    from vllm.v1.structured_output import StructuredOutputManager

    create = StructuredOutputManager._create_grammar
    if create.__module__ == __name__:
        return

    def create_read(self: StructuredOutputManager, request: "Request") -> "StructuredOutputGrammar":
        grammar = create(self, request)
        given, tokens = request.sampling_params, request.prompt_token_ids or []
        count = (given.extra_args or {}).get(CONSTRAINED, 0) if given is not None else 0
        begun = tokens[len(tokens) - count :]
        if begun and not grammar.accept_tokens(request.request_id, begun):
            raise ValueError(f"the first {count} tokens of the response are none of its structured output")
        return grammar

    StructuredOutputManager._create_grammar = create_read  # type: ignore[method-assign]
