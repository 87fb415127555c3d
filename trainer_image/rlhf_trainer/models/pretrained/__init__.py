"""Models and tokenizers: read from a directory or the hub, checked, or made from scratch."""
