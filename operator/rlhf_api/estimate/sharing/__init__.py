"""Memory of GPUs that trainer ranks, engines and frozen models share."""
