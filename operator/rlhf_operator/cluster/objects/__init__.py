"""Bodies of Kubernetes objects; pure."""
