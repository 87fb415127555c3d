"""Ports of the operator's pod: each a number of its own, and free; otherwise the operator ends with one sentence."""

import os
import socket
import subprocess
import sys

import pytest

from rlhf_operator.cluster.__main__ import EXIT_SETTINGS
from rlhf_operator.cluster.config.settings import Settings

NEEDED = {"RLHF_TOKEN_KEY": "k" * 32, "RLHF_TRAINER_IMAGE": "i"}


@pytest.mark.parametrize("port", ["0", "65536", "²", "-1", "http"])
def test_what_is_no_port_is_refused_by_name(port: str) -> None:
    with pytest.raises(ValueError, match=f"RLHF_METRICS_PORT must be a port; got '{port}'"):
        Settings.read({**NEEDED, "RLHF_METRICS_PORT": port})


@pytest.mark.parametrize("metrics", [{}, {"RLHF_METRICS_PORT": "8080"}])
def test_one_port_for_metrics_and_webhook_is_refused(metrics: dict[str, str]) -> None:
    with pytest.raises(
        ValueError, match="RLHF_METRICS_PORT and RLHF_WEBHOOK_PORT must differ; both are 8080"
    ):
        Settings.read({**NEEDED, **metrics, "RLHF_WEBHOOK_PORT": "8080"})


def test_a_port_that_is_taken_ends_the_operator_with_one_line(tmp_path) -> None:
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(
        '{"apiVersion": "v1", "kind": "Config", "current-context": "c",'
        ' "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],'
        ' "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:1"}}],'
        ' "users": [{"name": "u", "user": {"token": "t"}}]}'
    )
    with socket.create_server(("", 0)) as taken:
        port = str(taken.getsockname()[1])
        environ = {**os.environ, **NEEDED, "KUBECONFIG": str(kubeconfig), "RLHF_METRICS_PORT": port}
        command = [sys.executable, "-m", "rlhf_operator.cluster"]
        done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == EXIT_SETTINGS
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"rlhf-operator: cannot listen on port {port}: ")
