"""Commands about jobs on a cluster: `rlhf status` and so on, also as `kubectl rlhf`."""
