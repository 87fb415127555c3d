"""Settings of an administrator: the operator's settings, limits, namespaces."""
