"""Objects as watches tell of them, and the keys whose turn it is."""
