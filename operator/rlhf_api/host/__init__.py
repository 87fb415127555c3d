"""Access of the command line, the operator and the trainer to a machine: its files, its terminal, users' modules."""
