"""vLLM's processes: options, start, watch and end."""
