"""A process of a role: start and end, faults, signs of progress, addresses, what its configuration names."""
