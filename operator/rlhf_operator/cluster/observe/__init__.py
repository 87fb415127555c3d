"""What a reconcile reads."""
