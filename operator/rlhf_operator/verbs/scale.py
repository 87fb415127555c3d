"""`rlhf scale`."""

import argparse
import sys

from rlhf_api.contract.run import roles_of
from rlhf_api.manifest.load import from_cluster
from rlhf_api.roles import Role

from ..console.exits import Failure
from .client import Session
from .jobs import find, is_finished, status_of
from .terminal import put


async def scale(session: Session, options: argparse.Namespace) -> int:
    name = options.name
    body = await find(session, name)
    status = status_of(body)
    if status is not None and is_finished(status):
        raise Failure(f"{name} has {status.phase.lower()} already; there is nothing to scale")
    spec = from_cluster(body).spec
    if Role.GENERATOR not in roles_of(spec):
        reason = "generates in its trainer" if spec.graph.generates else f"is a job of {spec.algorithm}"
        raise Failure(f"{name} {reason} and has no generators")
    patch = {"spec": {"replicas": options.generators}}
    await session.patch_job(name, patch, subresource="scale")
    put(f"{name}: generators {spec.generator.replicas} -> {options.generators}", sys.stdout)
    return 0
