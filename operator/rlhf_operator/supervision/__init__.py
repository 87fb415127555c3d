"""What either host does with a job's processes: states, restarts, budgets, deadlines."""
