"""Commands that read a manifest: run, plan, data."""
