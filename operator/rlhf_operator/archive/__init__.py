"""What the command line reads of a checkpoint store, without a cluster and without torch."""
