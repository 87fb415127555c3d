"""Problems of a manifest, in words: the field, the value, the remedy."""
