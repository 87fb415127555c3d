"""`spec.weights`: the broadcast of the policy."""

from ..field_types import Frozen, Positive, PositiveFloat


class Weights(Frozen):
    """The broadcast of the policy to the generators."""

    every_steps: Positive = 1
    """Number of steps from one broadcast to the next; in the steps between, the old log-probabilities are the
    generators'."""
    timeout_seconds: PositiveFloat = 30.0
    """Deadline of each broadcast; a generator that misses it is left behind until it comes back."""
    bucket_megabytes: Positive = 512
    """Bucket size of the broadcast; two buckets are held in the first trainer GPU's memory."""
