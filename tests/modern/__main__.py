"""`python -m tests.modern`: builds the API server of these tests, beside other work."""

import sys

from tests.cluster.packages import Unavailable
from tests.modern.binary import binary

if __name__ == "__main__":
    try:
        print(f"apiextensions-apiserver of Kubernetes {binary().version} is built")
    except Unavailable as error:
        sys.exit(f"error: {error}")
