"""Environments of other collections as they are, each a class that `spec.environment.path` names by one word."""
