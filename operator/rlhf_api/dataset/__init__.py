"""Rows of datasets: their kinds, their files, the template of their conversations."""
