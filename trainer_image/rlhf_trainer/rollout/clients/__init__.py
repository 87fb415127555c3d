"""Clients of the samplers of responses: engines, the trainer, and episodes of several turns on either."""
