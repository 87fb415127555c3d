"""What a run leaves in an object store, and how it gets there: without torch, so that any machine can look."""
