"""What the command line, the operator and the trainer need of a machine: its files, its terminal, users' modules."""
