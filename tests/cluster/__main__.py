"""`python -m tests.cluster up|join|build|images|down [--state DIR]`: what `make cluster` and its like run."""

import argparse
import sys
import time
from pathlib import Path

from tests.cluster import images
from tests.cluster.down import down, running
from tests.cluster.node import Place
from tests.cluster.packages import Unavailable, cache
from tests.cluster.up import join, up


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="tests.cluster", description="A real Kubernetes with one node, or two, for tests."
    )
    parser.add_argument("verb", choices=("up", "join", "build", "images", "down"))
    parser.add_argument(
        "--state", type=Path, default=cache() / "cluster", help="its folder; default %(default)s"
    )
    arguments = parser.parse_args()
    place = Place(arguments.state.resolve())
    try:
        if arguments.verb == "up":
            begin = time.monotonic()
            started = up(place)
            how = f"up after {time.monotonic() - begin:.0f} s" if started else "up already"
            print(f"the cluster is {how}; next:\n  make images\n  export KUBECONFIG={place.kubeconfig}")
        elif arguments.verb == "join":
            up(place)
            images.load(join(place))
            print(f"{place.second.name} has joined, with our images")
        elif arguments.verb == "build":
            images.build()
        elif arguments.verb == "images":
            images.build()
            if running(place):
                images.load(place)
        else:
            down(place)
    except (Unavailable, RuntimeError, TimeoutError) as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
