"""Commands about jobs on a cluster: `rlhf status` and its like, and the same as `kubectl rlhf`."""
