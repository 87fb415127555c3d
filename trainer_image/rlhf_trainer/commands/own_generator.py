"""vLLM on this machine for the time of a command, started as one generator of the job is."""

import asyncio
import secrets
import socket
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp

from rlhf_api.contract.run import Member, Process, RunConfig, environment
from rlhf_api.host.printing import write_line
from rlhf_api.roles import HEALTH, Role

from ..process import private_processes, process_groups
from ..transport.http import PROBE_SECONDS, HttpClient, HttpError

HOST = "127.0.0.1"
POLL_SECONDS, SAY_SECONDS = 0.5, 30.0
_QUOTED = 2000


@asynccontextmanager
async def own_generator(config: RunConfig, http: HttpClient, token: str) -> AsyncIterator[Member]:
    """The generator, once it answers; `http`: a client with `token`. Says on stderr that it loads. Raises RuntimeError
    where it ends before, or takes longer than `generator.startupTimeoutSeconds`."""
    with tempfile.TemporaryDirectory() as name:
        folder, port = Path(name), _free_port()
        (folder / "run.json").write_text(config.model_dump_json(by_alias=True))
        process = Process(Role.GENERATOR, 0, port, HOST, "")
        files = {"config_file": str(folder / "run.json"), "termination_log": str(folder / "end")}
        variables = environment(config, process, **files) | {"RLHF_TOKEN": token}
        with (folder / "log").open("wb") as log:
            server = await process_groups.start(
                *(sys.executable, "-P", "-m", "rlhf_trainer.roles.generator"),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                process_group=0,
                env=private_processes.variables_for(network=True) | variables,
            )
        try:
            member = Member(role=Role.GENERATOR, name=process.name, uid="", address=f"http://{HOST}:{port}")
            await _wait_until_ready(
                member, server, http, config.spec.generator.startup_timeout_seconds, folder
            )
            yield member
        finally:
            await process_groups.end(server)


def new_token() -> str:
    return secrets.token_hex(16)


async def _wait_until_ready(
    member: Member, server: asyncio.subprocess.Process, http: HttpClient, seconds: float, folder: Path
) -> None:
    began = reported = time.monotonic()
    write_line("vLLM is loading the policy, which takes about a minute", sys.stderr)
    while not await _answers(member, http):
        now = time.monotonic()
        if server.returncode is not None:
            how = private_processes.how_ended(server.returncode)
            raise RuntimeError(f"vLLM {how} while it was loading the policy: {_reason(folder)}")
        if now - began > seconds:
            field = "spec.generator.startupTimeoutSeconds"
            raise RuntimeError(f"vLLM was not ready within {seconds:g} s ({field}): {_reason(folder)}")
        if now - reported > SAY_SECONDS:
            reported = now
            write_line(f"vLLM is still loading the policy, {now - began:.0f} s", sys.stderr)
        await asyncio.sleep(POLL_SECONDS)
    write_line(f"vLLM is ready after {time.monotonic() - began:.0f} s", sys.stderr)


async def _answers(member: Member, http: HttpClient) -> bool:
    try:
        await http.json("GET", member.address + HEALTH, timeout=PROBE_SECONDS)
    except (HttpError, TimeoutError, aiohttp.ClientError, ValueError):
        return False
    return True


def _reason(folder: Path) -> str:
    """The role's own reason, else the end of its log."""
    end = folder / "end"
    text = (end if end.is_file() else folder / "log").read_text(errors="replace").strip()
    return text.rpartition("\n")[2] if end.is_file() else text[-_QUOTED:]


def _free_port() -> int:
    with socket.create_server((HOST, 0)) as probe:
        return int(probe.getsockname()[1])
