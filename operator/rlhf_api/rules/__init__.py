"""What no single field can say: rules on a whole spec."""
