"""A model's forward pass over packed or padded micro-batches."""
