"""A cluster with a node and our images, for all end-to-end tests, a namespace for each, and one for jobs."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from tests.cluster import images
from tests.cluster.down import down
from tests.cluster.node import Place
from tests.cluster.packages import Unavailable, cache
from tests.cluster.up import up
from tests.support.installed import JOBS, SYSTEM, install, uninstall, volume
from tests.support.kubernetes.cluster import Cluster, existing
from tests.support.kubernetes.helm import helm
from tests.support.kubernetes.kube import kubectl, new_namespace
from tests.support.kubernetes.operator import Jobs

from rlhf_operator.cluster.objects.pod import USER

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """The one that RLHF_TEST_KUBECONFIG names, which has the images; or that of `make cluster`, taken down again only
    where it was not up before.
    """
    if named := existing():
        yield named
        return
    place = Place(cache() / "cluster")
    try:
        images.build()
        started = up(place)
    except Unavailable as reason:
        pytest.skip(str(reason))
    try:
        images.load(place)
        yield Cluster(place.kubeconfig, own=started)
    finally:
        if started:
            down(place)


@pytest.fixture
def namespace(cluster: Cluster) -> Iterator[str]:
    """Empty, of this test alone."""
    with new_namespace(cluster.kubeconfig) as name:
        yield name


@pytest.fixture(scope="session")
def jobs(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Jobs]:
    """A cluster with the chart installed, an S3 server, and a namespace that admits only restricted pods."""
    if existing() is not None:
        pytest.skip("needs a directory of this machine in its pods: unset RLHF_TEST_KUBECONFIG")
    kubeconfig = cluster.kubeconfig
    workspace = tmp_path_factory.mktemp("workspace")
    shutil.copytree(ROOT / "examples", workspace / "examples")
    for path in (workspace, *workspace.parents[:3]):
        path.chmod(0o755)
    shutil.chown(workspace, USER, USER)
    kubectl(kubeconfig, "create", "namespace", JOBS)
    kubectl(kubeconfig, "label", "namespace", JOBS, "pod-security.kubernetes.io/enforce=restricted")
    kubectl(kubeconfig, "apply", "-n", JOBS, "-f", "-", input=yaml.safe_dump_all(volume(workspace)))
    server = Path(images.__file__).with_name("seaweedfs.yaml").read_text()
    # The page, which is in another namespace, reads the address too.
    server = server.replace("http://seaweedfs:", f"http://seaweedfs.{JOBS}:")
    kubectl(kubeconfig, "apply", "-n", JOBS, "-f", "-", input=server)
    install(kubeconfig)
    helm("test", "rlhf", "-n", SYSTEM, kubeconfig=kubeconfig)
    yield Jobs(kubeconfig, JOBS)
    if cluster.own:
        return
    uninstall(kubeconfig, JOBS)
