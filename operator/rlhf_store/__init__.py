"""Snapshots of a run in an object store: written, read and retained without torch, so that any machine can inspect
them.
"""
