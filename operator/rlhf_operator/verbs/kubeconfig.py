"""Cluster and namespace of a verb, resolved as kubectl does."""

import difflib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from kubernetes.aio import config
from kubernetes.aio.client.configuration import Configuration
from kubernetes.aio.config.kube_config import KubeConfigMerger

from ..console.exits import Failure

_HOME = "~/.kube/config"
_POD_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


@dataclass(frozen=True)
class Target:
    """A cluster and a namespace in it."""

    configuration: Configuration
    namespace: str
    cluster: str
    """The cluster's name in messages."""


async def locate(kubeconfig: str | None, context: str | None, namespace: str | None) -> Target:
    """Resolves cluster and namespace. Raises Failure if they name no cluster."""
    named = kubeconfig or os.environ.get("KUBECONFIG")
    paths = named or _HOME
    if not any(Path(path).expanduser().is_file() for path in paths.split(os.pathsep) if path):
        if named is None and context is None and "KUBERNETES_SERVICE_HOST" in os.environ:
            return _own_pod(namespace)
        raise Failure(f"{paths}: there is no such kubeconfig; name one by --kubeconfig or KUBECONFIG")
    configuration = Configuration()
    try:
        chosen = _context(paths, context)
        loader = await config.load_kube_config(
            paths, chosen["name"], client_configuration=configuration, persist_config=False
        )
    except yaml.YAMLError as error:
        raise Failure(f"{paths}: the kubeconfig is not valid YAML: {' '.join(str(error).split())}") from None
    except (TypeError, AttributeError, UnicodeDecodeError):  # of a list, of nothing, of bytes
        message = "is not a kubeconfig: it must be an object with clusters, users and contexts"
        raise Failure(f"{paths}: {message}") from None
    except (config.ConfigException, OSError, ValueError, KeyError) as error:
        raise Failure(f"{paths}: the kubeconfig cannot be used: {error}") from None
    if hasattr(loader, "exec_plugin_expiry"):
        configuration.refresh_api_key_hook = _refresh(loader)
    configuration.connection_pool_maxsize = 0  # one per followed log
    space = namespace or (chosen.get("context") or {}).get("namespace") or "default"
    return Target(configuration, space, f"{configuration.host} (context {chosen['name']} of {paths})")


def _context(paths: str, name: str | None) -> dict[str, Any]:
    merged = KubeConfigMerger(paths).config.value
    contexts: dict[str, dict[str, Any]] = {
        node.value["name"]: node.value for node in merged.get("contexts") or ()
    }
    name = name or merged.get("current-context")
    if name in contexts:
        return contexts[name]
    if not name:
        raise Failure(f"{paths}: has no current context; choose one by --context: {_names(contexts)}")
    close = difflib.get_close_matches(name, contexts, n=1)
    hint = f"did you mean {close[0]}?" if close else f"there are: {_names(contexts)}"
    raise Failure(f"{paths}: has no context {name!r}; {hint}")


def _names(contexts: dict[str, dict[str, Any]]) -> str:
    return ", ".join(sorted(contexts)) or "none"


def _refresh(loader: Any) -> Any:
    """Refreshes the token of the user's credential plugin, which may expire while a job is followed."""

    async def refresh(configuration: Configuration) -> None:
        await loader.load_from_exec_plugin()
        configuration.api_key["BearerToken"] = loader.token

    return refresh


def _own_pod(namespace: str | None) -> Target:
    configuration = Configuration()
    try:
        config.load_incluster_config(configuration)
    except config.ConfigException as error:
        raise Failure(
            f"this pod has no credentials for its cluster, and there is no kubeconfig: {error}"
        ) from None
    configuration.connection_pool_maxsize = 0
    own = _POD_NAMESPACE.read_text().strip() if _POD_NAMESPACE.exists() else "default"
    return Target(configuration, namespace or own, f"{configuration.host} (the cluster of this pod)")
