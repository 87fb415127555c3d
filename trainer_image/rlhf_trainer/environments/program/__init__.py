"""Agent programs as environments: they ask the policy over the OpenAI API, and the worker replies. Imports no torch."""
