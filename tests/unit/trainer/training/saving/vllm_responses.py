"""Greedy responses of vLLM's own class, each with the reason of its end: `vllm_responses`, with a model's folder, the
prompts and the limit as JSON on stdin, writes a line of JSON."""

import json
import sys

from vllm import LLM


def main() -> None:
    folder, prompts, limit = json.loads(sys.stdin.read())
    llm = LLM(folder, dtype="float32", max_model_len=128, enforce_eager=True, kv_cache_memory_bytes=64 << 20)
    sampling = llm.get_default_sampling_params()
    sampling.max_tokens, sampling.temperature, sampling.skip_special_tokens = limit, 0.0, False
    ended = [request.outputs[0] for request in llm.generate(prompts, sampling)]
    print(json.dumps([f"{each.text} {each.finish_reason}" for each in ended]))


if __name__ == "__main__":
    main()
