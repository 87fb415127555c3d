"""Between a host and a job's processes: configuration, environment, commands, report, status."""
