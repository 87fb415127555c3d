"""A real registry on this machine, Debian's `docker-registry`, from which nodes of the test cluster pull."""

import json
import shutil
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.cluster import transfer
from tests.cluster.node import Place
from tests.cluster.packages import IMAGES, require
from tests.support.kubernetes.kube import eventually
from tests.support.ports import free_port
from tests.support.processes import processes

_READY_S, _REQUEST_S = 60, 5


@contextmanager
def registry(place: Place, folder: Path, mirrored: str) -> Iterator[str]:
    """Its address at the host's end of the cable, without TLS; meanwhile the node takes it for the registry `mirrored`.

    Raises:
        Unavailable: this machine cannot have the packages.
    """
    require(IMAGES)
    address = f"{place.host_address}:{free_port()}"
    config = {
        "version": 0.1,
        "log": {"level": "error"},
        "storage": {"filesystem": {"rootdirectory": str(folder / "registry")}},
        "http": {"addr": address},
    }
    file = folder / "registry.json"
    file.write_text(json.dumps(config))
    mirror = place.registries / mirrored
    mirror.mkdir(parents=True)
    (mirror / "hosts.toml").write_text(
        f'server = "http://{address}"\n[host."http://{address}"]\ncapabilities = ["pull", "resolve"]\n'
    )
    try:
        with processes(folder) as made:
            made.launch("registry", ["docker-registry", "serve", str(file)])

            def answers() -> bool:
                made.check()
                try:
                    return urllib.request.urlopen(f"http://{address}/v2/", timeout=_REQUEST_S).status == 200
                except OSError:
                    return False

            eventually(answers, "the registry", _READY_S)
            yield address
    finally:
        shutil.rmtree(mirror)
        transfer.remove(place, f"{mirrored}/")  # or the next one would not be asked
