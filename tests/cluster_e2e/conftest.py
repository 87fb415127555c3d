"""A cluster with a node and our images, for all end-to-end tests, and a namespace for each."""

from collections.abc import Iterator

import pytest
from tests.cluster import images
from tests.cluster.down import down
from tests.cluster.node import Place
from tests.cluster.packages import Unavailable, cache
from tests.cluster.up import up
from tests.support.cluster import Cluster, existing
from tests.support.kube import new_namespace


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """The one that KUBECONFIG names, which has the images; or that of `make cluster`, taken down again only where it
    was not up before.
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
