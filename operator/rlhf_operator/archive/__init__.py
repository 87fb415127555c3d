"""Checkpoint stores on the command line, without a cluster and without torch."""
