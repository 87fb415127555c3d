"""Rules on a whole spec, which no single field can hold."""
