"""`rlhf import`: configurations of other systems, read without running them, as a manifest."""
