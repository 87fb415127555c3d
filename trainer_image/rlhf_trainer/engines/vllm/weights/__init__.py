"""A worker's weights: received, checked, swapped in."""
