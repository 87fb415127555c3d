"""Datasets: sources and their order, chat templates, and rows as tokens. Nothing here but `prompts` imports torch."""
