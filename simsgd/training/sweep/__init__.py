"""Many runs from one command: a grid of settings, several processes, one table."""
