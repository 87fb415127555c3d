"""The manifest as data, a file for each section; decides nothing."""
