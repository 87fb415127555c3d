"""Trained models as Hugging Face folders."""
