"""Requests that go on: their rounds, the generators that they are sent to, and what a snapshot has of them."""
