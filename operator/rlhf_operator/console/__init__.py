"""Output, exit codes and arguments of the command line."""
