"""Who samples the tokens of the responses: engines, the trainer, and episodes of several turns on either."""
