"""A job's status, its conditions and metrics, on either host."""
