"""`rlhf clone`: a manifest for a new run that starts from a checkpoint of another one."""

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from rlhf_api.errors.problem import InvalidJob, Problem
from rlhf_api.host.strict_yaml import dumped
from rlhf_api.job import API_VERSION, KIND
from rlhf_api.manifest.load import apply_override, composed, parse
from rlhf_api.sections.checkpoint import Origin
from rlhf_store.errors import DamagedSnapshot, MissingSnapshot, UnusableStore

from ..archive.open_store import package, sibling_store
from ..console.exits import Failure, Misuse, print_line
from .client import Session
from .jobs import find, status_of


def clone_file(options: argparse.Namespace) -> int:
    """Clones a run of `rlhf run`, whose checkpoints are in its work directory unless the manifest names a store."""
    document = composed(options.run, variables=options.variables)
    parse(document)
    spec, name = document["spec"], document["metadata"]["name"]
    folder: Path = options.workdir or Path("runs", name)
    store = (spec.get("checkpoint") or {}).get("store") or (folder / "checkpoints").resolve().as_uri()
    origin = Origin(store=store, step=options.from_step)
    try:
        package("rlhf_store.copying").find(origin.store, origin.step)
    except MissingSnapshot as error:
        raise InvalidJob([Problem("--from-step", str(error))]) from None
    except DamagedSnapshot as error:
        raise InvalidJob([Problem("--from-step", f"{error}; take another step")]) from None
    except UnusableStore as error:
        raise InvalidJob([Problem(f"the store {origin.store}", str(error))]) from None
    except RuntimeError as error:  # a failing store
        raise Failure(str(error)) from error
    return _print(document, origin, options)


async def clone(session: Session, options: argparse.Namespace) -> int:
    """Clones a job on the cluster, whose checkpoints are where its status says."""
    if options.workdir is not None:
        raise Misuse(
            "--workdir applies only to a run of this machine, which is named by its manifest: `rlhf clone FILE`"
        )
    body = await find(session, options.run)
    status = status_of(body)
    newest = status.last_checkpoint if status else None
    if newest is None or newest.uri is None:
        raise Failure(f"{options.run} has no checkpoint yet; `rlhf checkpoint {options.run}` makes one")
    if options.from_step > newest.step:
        raise Failure(
            f"{options.run} has no checkpoint of step {options.from_step}; its newest is of {newest.step}"
        )
    origin = Origin(store=newest.uri, step=options.from_step)
    if urlsplit(origin.store).scheme != "file":  # which is in the pods' workspace
        try:
            package("rlhf_store.copying").find(origin.store, origin.step)
        except MissingSnapshot as error:
            raise InvalidJob([Problem("--from-step", str(error))]) from None
        except (InvalidJob, UnusableStore, RuntimeError) as error:  # not installed, or a failing store
            print_line(
                f"warning: the checkpoint was not checked from here, the trainer will check it: {error}",
                sys.stderr,
            )
    metadata = {
        key: body["metadata"][key] for key in ("name", "namespace", "labels") if key in body["metadata"]
    }
    document = {"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata, "spec": body["spec"]}
    return _print(document, origin, options)


def cloned(document: Mapping[str, Any], name: str, origin: Origin) -> dict[str, Any]:
    """The document with another name and a store beside the other run's, without suspend and resume."""
    spec = {key: value for key, value in document["spec"].items() if key != "suspend"}
    checkpoint = {k: v for k, v in (spec.get("checkpoint") or {}).items() if k != "resume"}
    if checkpoint.get("store"):
        checkpoint["store"] = sibling_store(checkpoint["store"], name)
    checkpoint["startFrom"] = origin.model_dump(mode="json", by_alias=True)
    return {
        **document,
        "metadata": {**document["metadata"], "name": name},
        "spec": {**spec, "checkpoint": checkpoint},
    }


def _print(document: Mapping[str, Any], origin: Origin, options: argparse.Namespace) -> int:
    name = options.name or f"{document['metadata']['name']}-from-{origin.step}"
    made: Any = cloned(document, name, origin)
    for override in options.set:
        made = apply_override(made, override)
    parse(made)
    print_line(dumped(made), sys.stdout)
    return 0
