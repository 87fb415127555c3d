"""Packed arrays: records of a step, sampling masks, micro-batches."""
