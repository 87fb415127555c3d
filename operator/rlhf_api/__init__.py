"""The contract of an RLHF job: its manifest, the configuration of its roles, and its status."""
