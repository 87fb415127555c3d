"""Rank 0 with one step's responses: its memory, its CPU time, and how long its control API lets a host wait.

    .venv/bin/python benchmarks/trainer/rank0.py [--prompts 1000] [--tokens 32768] [--concurrent 512] [--kept 0]

Stand-ins for vLLM, in processes of their own, stream responses of as many tokens as asked for, as fast as they are
read; rank 0 sends all to a second rank, a process too, and then encodes the step's episode for a snapshot on another
thread. With `--kept` each token has a sampling mask of so many other ones. Prints one JSON line, of rank 0's process.
Memory is what it holds beyond what it held before: `responses_gb` once all came, `shared_gb` once the other rank has
them, and at its peak until then (`peak_gb`) and with the episode (`snapshot_peak_gb`); `other_gb` and `other_peak_gb`
are the other rank's. `sent_bytes_per_token` is what goes to it in `share_s` seconds, `cpu_us_per_token` until it has
all; `longest_wait_s` of a request to the control API every 50 ms, from another process, whose own sleeps were up to
`late_s` too long on this machine; `stall_s` the longest time in which the main thread did not run while the episode was
encoded, which took `encode_s`.
"""

import argparse
import json
import multiprocessing
import os
import resource
import threading
import time
import urllib.error
import urllib.request
from array import array
from functools import partial
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

import torch
from aiohttp import web
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from torch import distributed
from transformers import PreTrainedTokenizerFast

from rlhf_api.contract.proof import Prover
from rlhf_api.contract.run import CONTROL_STATUS, Member
from rlhf_api.host.event_loop import EventLoop
from rlhf_api.roles import Role
from rlhf_api.sections.sampling import Sampling
from rlhf_operator.local.resources.ports import HOST, assign
from rlhf_trainer.dispatch.assignments import Limits
from rlhf_trainer.dispatch.control import Control, token_required
from rlhf_trainer.process.garbage import full_collections_by_hand
from rlhf_trainer.ranks.ranks import Ranks
from rlhf_trainer.replay.buffer import EpisodeReplayBuffer
from rlhf_trainer.rollout.clients.vllm_client import VllmClient
from rlhf_trainer.rollout.in_flight.requests import Responses
from rlhf_trainer.rollout.in_flight.rounds import start_round
from rlhf_trainer.rollout.partial_rollout import PartialRollout, rollouts
from rlhf_trainer.rollout.responses import collected
from rlhf_trainer.scoring.rewards import texts
from rlhf_trainer.tensors.records import Prompt
from rlhf_trainer.transport.frames import GENERATE, Asked, Kind, encode
from rlhf_trainer.transport.http import HttpClient

SERVERS = 2
WORDS = 1000


def serve(port: int) -> None:
    async def respond(request: web.Request) -> web.StreamResponse:
        body = Asked.model_validate_json(await request.read())
        response = web.StreamResponse()
        await response.prepare(request)
        left = body.max_tokens
        while left:
            count = min(body.stream_interval, left)
            left -= count
            tokens = [(left + i) % WORDS for i in range(count)]
            logprobs = [-0.123456789 - 1e-6 * i for i in range(count)]
            masks = [range(1, body.kept)] * count if body.kept else None
            await response.write(encode(0, Kind.TOKENS if left else Kind.LENGTH, 0, tokens, logprobs, masks))
        return response

    app = web.Application(middlewares=[token_required(Prover("token", HOST, port))])
    app.router.add_post(GENERATE, respond)
    web.run_app(app, host=HOST, port=port, print=None)


def resident() -> float:
    """GB of memory of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 1e9


def peak() -> float:
    """GB of memory that this process held at most."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9


def watch(control: int, over: Event, longest: Any, late: Any) -> None:
    """The host, as the operator or a kubelet: asks again and again, once there is an answer. `late`: by how much its
    own sleeps were too long, which is the machine's doing."""
    status_request = urllib.request.Request(
        f"http://{HOST}:{control}{CONTROL_STATUS}", headers={"Authorization": "Bearer token"}
    )
    up = False
    asleep = time.monotonic()
    while not over.wait(0.05):
        began = time.monotonic()
        late.value = max(late.value, began - asleep - 0.05)
        try:
            with urllib.request.urlopen(status_request, timeout=60) as reply:
                reply.read()
        except urllib.error.URLError:
            assert not up, "the control API is gone"
        else:
            if up:
                longest.value = max(longest.value, time.monotonic() - began)
            up = True
        asleep = time.monotonic()


def join(rank: int, port: int) -> Ranks:
    os.environ |= {"MASTER_ADDR": HOST, "MASTER_PORT": str(port), "RANK": str(rank), "WORLD_SIZE": "2"}
    distributed.init_process_group("gloo")
    return Ranks(rank, 2, torch.device("cpu"))


def other_rank(port: int, held: Any, most: Any) -> None:
    ranks, before = join(1, port), resident()
    episode = collected(ranks, 1, Responses(), {}).episode
    held.value, most.value = resident() - before, peak() - before
    distributed.barrier()
    assert episode is not None


def count_sent() -> list[int]:
    """A list that grows by the bytes of each broadcast from here on."""
    sent, broadcast = list[int](), distributed.broadcast

    def counted(tensor: torch.Tensor, *rest: Any, **options: Any) -> Any:
        sent.append(tensor.nbytes)
        return broadcast(tensor, *rest, **options)

    distributed.broadcast = counted
    return sent


def encode_beside(buffer: EpisodeReplayBuffer) -> tuple[float, float]:
    """Seconds of encoding the episode on another thread, and the longest in which this one did not run."""
    began = latest = time.monotonic()
    thread, stall = threading.Thread(target=buffer.blob), 0.0
    thread.start()
    while thread.is_alive():
        time.sleep(0.001)
        stall, latest = max(stall, time.monotonic() - latest), time.monotonic()
    return latest - began, stall


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--prompts", type=int, default=1000)
    parser.add_argument("--tokens", type=int, default=32768)
    parser.add_argument(
        "--kept", type=int, default=0, help="other tokens in the sampling mask of each, 0 to 255"
    )
    parser.add_argument("--concurrent", type=int, default=512, help="requests at once with each server")
    options = parser.parse_args()

    control, gang, *ports = assign(
        ["control", "gang", *(f"server {i}" for i in range(SERVERS))], None
    ).values()
    over, longest, late = multiprocessing.Event(), multiprocessing.Value("d"), multiprocessing.Value("d")
    other, other_peak = multiprocessing.Value("d"), multiprocessing.Value("d")
    others = [
        *(multiprocessing.Process(target=serve, args=(port,), daemon=True) for port in ports),
        multiprocessing.Process(target=other_rank, args=(gang, other, other_peak), daemon=True),
        multiprocessing.Process(target=watch, args=(control, over, longest, late), daemon=True),
    ]
    for process in others:
        process.start()
    ranks = join(0, gang)
    members = [
        Member(role=Role.GENERATOR, name=f"s{i}", uid=f"s{i}", address=f"http://{HOST}:{port}")
        for i, port in enumerate(ports)
    ]
    http = HttpClient("token")
    masked = {"topK": options.kept + 1} if options.kept else {}
    sampling = Sampling.model_validate({"maxNewTokens": options.tokens, **masked})
    client = VllmClient(http, sampling=sampling, seed=0, ends=[0])
    while not all(http.run(client.listens(member)) for member in members):
        time.sleep(0.1)
    works = [PartialRollout.begin(Prompt(f"0/{i}", (1, 2, 3), {}), 1) for i in range(options.prompts)]
    EventLoop("control").run(Control(1).serve(HOST, Prover("token", HOST, control)))
    time.sleep(1)  # the host has found it

    before, began, cpu = resident(), time.monotonic(), time.process_time()
    outcome = start_round(
        http, client, works, members,
        current=lambda: {member.uid: member for member in members},
        limits=Limits(options.concurrent, 600),
    ).result()  # fmt: skip
    seconds, held = time.monotonic() - began, resident() - before
    responses = Responses(rollouts(work for _, work in outcome.results))
    del outcome
    sent, ready = count_sent(), time.monotonic()
    episode = collected(ranks, 1, responses, {work.prompt.id: i for i, work in enumerate(works)}).episode
    distributed.barrier()
    share_seconds = time.monotonic() - ready
    used, shared, at_most = time.process_time() - cpu, resident() - before, peak() - before
    assert episode is not None
    assert len(episode) == options.prompts
    assert isinstance(responses.rollouts[0].tokens, array)
    del responses, works
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(WordLevel({f"w{i}": i for i in range(WORDS)}))
    )
    encoded, stall = encode_beside(EpisodeReplayBuffer(episode, partial(texts, tokenizer=tokenizer)))
    over.set()
    others[-1].join()
    http.close()
    count = options.prompts * options.tokens
    figures = {
        "prompts": options.prompts,
        "tokens": count,
        "seconds": round(seconds, 1),
        "share_s": round(share_seconds, 2),
        "sent_bytes_per_token": round(sum(sent) / count, 2),
        "cpu_us_per_token": round(used / count * 1e6, 3),
        "responses_gb": round(held, 3),
        "shared_gb": round(shared, 3),
        "peak_gb": round(at_most, 3),
        "other_gb": round(other.value, 3),
        "other_peak_gb": round(other_peak.value, 3),
        "encode_s": round(encoded, 1),
        "stall_s": round(stall, 3),
        "snapshot_peak_gb": round(peak() - before, 3),
        "longest_wait_s": round(longest.value, 3),
        "late_s": round(late.value, 3),
        "load": round(os.getloadavg()[0], 1),
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    with full_collections_by_hand():  # as a trainer does
        main()
