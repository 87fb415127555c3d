"""A step's metrics: files, log, host and trackers."""
