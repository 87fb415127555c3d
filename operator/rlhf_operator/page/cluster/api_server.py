"""Connects to the API server as a viewer, and as nobody else."""

from kubernetes.aio.client.configuration import Configuration

from ...kube.api import Api
from .settings import Settings


def connect(settings: Settings, token: str) -> Api:
    """A client with this token, and no other identity."""
    configuration = Configuration(host=settings.server)
    configuration.ssl_ca_cert = settings.ca
    configuration.api_key = {"BearerToken": token}
    configuration.api_key_prefix = {"BearerToken": "Bearer"}
    configuration.client_session_kwargs = {"trust_env": False}  # no ~/.netrc, which has passwords
    return Api(configuration)
