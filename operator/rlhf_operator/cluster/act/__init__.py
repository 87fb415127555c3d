"""Writes what was decided."""
