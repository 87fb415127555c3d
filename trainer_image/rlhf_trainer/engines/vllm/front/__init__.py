"""The routes and middleware of vLLM's server."""
