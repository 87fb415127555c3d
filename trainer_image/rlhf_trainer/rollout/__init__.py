"""Prompts to episodes: requests to the generators, responses, scores."""
