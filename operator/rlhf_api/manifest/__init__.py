"""From a file, or an object of a cluster, to a spec."""
