"""Commands on checkpoint stores, without a cluster and without torch."""
