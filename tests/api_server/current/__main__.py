"""`python -m tests.api_server.current`: builds the API server of these tests, beside other work."""

import sys

from tests.api_server.current.binary import binary
from tests.cluster.packages import Unavailable

if __name__ == "__main__":
    try:
        print(f"apiextensions-apiserver of Kubernetes {binary().version} is built")
    except Unavailable as error:
        sys.exit(f"error: {error}")
