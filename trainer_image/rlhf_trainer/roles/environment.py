"""The environment role: episodes' environments in worker processes of its own, for the trainer. Imports no torch."""

from rlhf_api.contract.run import ProcessEnv
from rlhf_api.host.reaper import become_subreaper

from ..environments.workers.worker_server import WorkerServer
from ..process.addresses import listen_host
from ..process.role import run_role
from ..transport.serving import serve


def run(env: ProcessEnv) -> None:
    section = env.config.spec.environment
    assert section is not None, "its host starts it for one"
    become_subreaper()  # of what environments leave behind
    serve(WorkerServer(section).application(env.prover()), listen_host(env.host), env.port)


if __name__ == "__main__":
    run_role(run)
