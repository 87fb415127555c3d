"""What an administrator sets: the operator's settings, limits, namespaces."""
