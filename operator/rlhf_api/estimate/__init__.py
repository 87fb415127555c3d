"""Bytes and seconds of a job before it runs."""
