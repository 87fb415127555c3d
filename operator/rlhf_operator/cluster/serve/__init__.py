"""What the operator's process serves: webhook, probes, metrics, logs."""
