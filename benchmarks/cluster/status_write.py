"""Processor time of a current API server for a status write, with the definition's rules and without them.

.venv/bin/python benchmarks/cluster/status_write.py

Server-side applies of a PPO job's status at the version that the one before left, on the custom-resource API server of
`tests/api_server/current`; rounds of the definition as it is, without the rule of changes, and without any rule. Prints
milliseconds of the server's processor time a write, which other work on the machine makes longer: compare within a run.
"""

import argparse
import copy
import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.api_server.current.binary import binary
from tests.api_server.current.jobs import define
from tests.api_server.current.server import APPLY, Server, server
from tests.api_server.oldest.jobs import PPO

from rlhf_api.manifest.load import parse
from rlhf_api.schema.crd import crd
from rlhf_operator.status.condition import observed
from rlhf_operator.status.job_status import first_status

PATH = "/apis/rlhf.dev/v1alpha1/namespaces/default/rlhfjobs"
RULES = "x-kubernetes-validations"


def definitions() -> Iterator[tuple[str, dict[str, Any]]]:
    yield "as it is", crd()
    unguarded = crd()
    for version in unguarded["spec"]["versions"]:
        del version["schema"]["openAPIV3Schema"][RULES]
    yield "without the rule of changes", unguarded
    yield "without any rule", bare(crd())


def bare(node: Any) -> Any:
    if isinstance(node, dict):
        return {key: bare(value) for key, value in node.items() if key != RULES}
    return [bare(each) for each in node] if isinstance(node, list) else node


def milliseconds(running: Server, process: psutil.Process, writes: int) -> float:
    """A write, once the server has warmed up."""
    made = running.call("POST", PATH, PPO).body
    content = observed(first_status(parse(copy.deepcopy(PPO)).spec, None), 1)
    status = json.loads(content.model_dump_json(by_alias=True, exclude_none=True))
    head = {key: made[key] for key in ("apiVersion", "kind")}
    path = f"{PATH}/{made['metadata']['name']}"
    began = 0.0
    for step in range(-writes // 10, writes):
        if step == 0:
            began = sum(process.cpu_times()[:2])
        metadata = {key: made["metadata"][key] for key in ("name", "resourceVersion")}
        body = {**head, "metadata": metadata, "status": {**status, "step": step + writes}}
        made = running.call("PATCH", f"{path}/status?fieldManager=rlhf-operator&force=true", body, APPLY).body
    spent = sum(process.cpu_times()[:2]) - began
    running.call("DELETE", path)
    return spent * 1000 / writes


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--writes", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, server(binary(), Path(folder)) as running:
        below = psutil.Process().children(recursive=True)
        (process,) = (each for each in below if each.name() == "apiextensions-apiserver")
        print(f"Kubernetes {running.version}, ms of the API server a status write")
        for _ in range(arguments.rounds):
            for name, definition in definitions():
                define(running, definition)
                print(f"{milliseconds(running, process, arguments.writes):6.2f}  {name}", flush=True)


if __name__ == "__main__":
    main()
