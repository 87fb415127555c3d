"""Rank 0 with one step's responses: its memory, its CPU time, and how long its control API lets a host wait.

    .venv/bin/python benchmarks/rank0.py [--prompts 1000] [--tokens 32768] [--concurrent 512]

Stand-ins for vLLM, in processes of their own, stream responses of as many tokens as asked for in vLLM's form, as fast
as they are read. Prints one JSON line: `peak_gb`, what the process holds at its peak beyond what it held before;
`cpu_us_per_token`; `longest_wait_s`, of a request to the control API every 50 ms.
"""

import argparse
import json
import multiprocessing
import resource
import threading
import time
import urllib.request
from pathlib import Path

from aiohttp import web

from rlhf_api.roles import Role
from rlhf_api.run import CONTROL_STATUS, Member
from rlhf_api.spec import Sampling
from rlhf_operator.local.ports import HOST, assign
from rlhf_trainer.comms import wire
from rlhf_trainer.comms.control import Control
from rlhf_trainer.comms.http import Background, EventLoop
from rlhf_trainer.generation.dispatch import start_round
from rlhf_trainer.generation.requests import Responses
from rlhf_trainer.generation.vllm import STREAM_INTERVAL, VllmClient
from rlhf_trainer.generation.work import Work, rollouts
from rlhf_trainer.records import Prompt
from rlhf_trainer.training.responses import message
from rlhf_trainer.weights.members import VERSION_HEADER

SERVERS = 2


def serve(port: int) -> None:
    async def complete(request: web.Request) -> web.StreamResponse:
        asked = await request.json()
        response = web.StreamResponse(headers={VERSION_HEADER: "1"})
        await response.prepare(request)
        left = asked["max_tokens"]
        while left:
            count = min(STREAM_INTERVAL, left)
            left -= count
            choice = {
                "index": 0,
                "text": "",
                "token_ids": [100_000 + left + i for i in range(count)],
                "logprobs": {"token_logprobs": [-0.123456789 - 1e-6 * i for i in range(count)]},
                "finish_reason": None if left else "length",
            }
            await response.write(b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n")
        await response.write(b"data: [DONE]\n\n")
        return response

    app = web.Application()
    app.router.add_post("/v1/completions", complete)
    web.run_app(app, host=HOST, port=port, print=None)


def resident() -> float:
    """GB of memory of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 1e9


def watch(control: int, over: threading.Event, waits: list[float]) -> None:
    asked = urllib.request.Request(
        f"http://{HOST}:{control}{CONTROL_STATUS}", headers={"Authorization": "Bearer token"}
    )
    while not over.wait(0.05):
        began = time.monotonic()
        with urllib.request.urlopen(asked, timeout=60) as reply:
            reply.read()
        waits.append(time.monotonic() - began)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--prompts", type=int, default=1000)
    parser.add_argument("--tokens", type=int, default=32768)
    parser.add_argument("--concurrent", type=int, default=512, help="requests at once with each server")
    options = parser.parse_args()

    control, *ports = assign(["control", *(f"server {i}" for i in range(SERVERS))], None).values()
    servers = [multiprocessing.Process(target=serve, args=(port,), daemon=True) for port in ports]
    for server in servers:
        server.start()
    members = [
        Member(role=Role.GENERATOR, name=f"s{i}", uid=f"s{i}", address=f"http://{HOST}:{port}")
        for i, port in enumerate(ports)
    ]
    http, over, waits = Background("token"), threading.Event(), list[float]()
    sampling = Sampling.model_validate({"maxNewTokens": options.tokens})
    client = VllmClient(http, model="job", sampling=sampling, seed=0, ends=[0])
    while not all(http.run(client.listens(member)) for member in members):
        time.sleep(0.1)
    works = [Work.begin(Prompt(f"0/{i}", (1, 2, 3), {}), 1) for i in range(options.prompts)]
    EventLoop("control").run(Control(1).serve(HOST, control, "token"))
    watching = threading.Thread(target=watch, args=(control, over, waits), daemon=True)
    watching.start()

    before, began, cpu = resident(), time.monotonic(), time.process_time()
    found = start_round(
        http, client, works, members,
        current=lambda: {member.uid: member for member in members},
        concurrent=options.concurrent, silence=600,
    ).result()  # fmt: skip
    seconds = time.monotonic() - began
    held = resident() - before
    whole = rollouts(work for _, work in found.results)
    arrays, header = message(Responses(whole), {work.prompt.id: i for i, work in enumerate(works)})
    size = len(wire.encode(arrays, header))
    over.set()
    watching.join()
    http.close()
    count = options.prompts * options.tokens
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9
    figures = {
        "prompts": options.prompts,
        "tokens": count,
        "seconds": round(seconds, 1),
        "cpu_us_per_token": round((time.process_time() - cpu) / count * 1e6, 3),
        "responses_gb": round(held, 3),
        "message_gb": round(size / 1e9, 3),
        "peak_gb": round(peak - before, 3),
        "longest_wait_s": round(max(waits, default=0.0), 3),
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
