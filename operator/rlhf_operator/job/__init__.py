"""An RLHFJob and its pods as an API server has them, parsed; names, labels, ports."""
