"""Servers of the operator's process: webhook, probes, metrics; its logs."""
