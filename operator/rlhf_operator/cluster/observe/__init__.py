"""Readers of a reconcile."""
