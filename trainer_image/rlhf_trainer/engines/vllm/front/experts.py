"""The experts that routers chose for a response, taken from vLLM as its tokens come: vLLM itself returns them at its
end, which an interrupted one has not."""

from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any

import numpy as np

from ....transport.frames import Asked

if TYPE_CHECKING:
    from vllm.outputs import CompletionOutput
    from vllm.v1.engine.async_llm import AsyncLLM


class TakenExperts:
    """Of the responses to one request, those that the engine gave and that were not sent yet."""

    def __init__(self, engine: "AsyncLLM", name: str, request: Asked) -> None:
        self._engine, self._name, self._begin = engine, name, request.experts_from
        self._prompt = len(request.prompt)
        self._waiting = defaultdict[int, list[np.ndarray]](list)
        self._sent, self._tokens = Counter[int](), Counter[int]()

    def take(self, output: "CompletionOutput") -> np.ndarray | None:
        """Rows of the tokens before those of `output`, each once: uint8 or uint16 [n, L, K]; None where none were asked
        for or none came. The engine may be further than its output: the row of a token goes with the next token."""
        if self._begin is None:
            return None
        index = output.index
        self._tokens[index] += len(output.token_ids)
        waiting = self._waiting[index]
        if output.finish_reason is not None:
            waiting += [] if output.routed_experts is None else [output.routed_experts]
        else:
            chunks = state_of(self._engine, self._name, index).routed_experts_chunks
            waiting += chunks
            chunks.clear()
        if not waiting:
            return None
        rows: np.ndarray = np.concatenate(waiting)
        count = self._prompt - self._begin + self._tokens[index] - 1 - self._sent[index]
        self._waiting[index] = [rows[count:]] if count < len(rows) else []
        self._sent[index] += min(count, len(rows))
        return rows[:count]


def state_of(engine: "AsyncLLM", name: str, index: int) -> Any:
    """The state in vLLM's output processor of a response that has not ended: the one of that index to the request."""
    processor = engine.output_processor
    states = (processor.request_states[each] for each in processor.external_req_ids.get(name, ()))
    (state,) = (state for state in states if state.request_index == index)
    return state
