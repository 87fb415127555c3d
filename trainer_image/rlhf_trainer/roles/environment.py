"""The environment role: episodes' environments in worker processes of its own, for the trainer. Imports no torch."""

from rlhf_api.contract.run import ProcessEnv, sandbox_token
from rlhf_api.host.reaper import become_subreaper

from ..environments.workers.worker_server import WorkerServer
from ..process.addresses import listen_host
from ..process.role import run_role
from ..transport.serving import serve


def run(env: ProcessEnv) -> None:
    section, sandbox = env.config.spec.environment, env.config.spec.sandbox
    assert section is not None, "its host starts it for one"
    sandboxes = None if sandbox is None else (sandbox_token(env.token), sandbox.startup_timeout_seconds)
    become_subreaper()  # of what environments leave behind
    serve(WorkerServer(section, sandboxes).application(env.prover()), listen_host(env.host), env.port)


if __name__ == "__main__":
    run_role(run)
