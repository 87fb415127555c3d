"""Supervision of a job's processes by either host: states, restarts, budgets, deadlines."""
