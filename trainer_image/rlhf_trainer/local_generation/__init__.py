"""Generation by the trainer itself, with the policy's own weights."""
