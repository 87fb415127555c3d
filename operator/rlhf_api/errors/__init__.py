"""What is wrong with a manifest, in words: the field, the value, the remedy."""
