"""How fast things run on this machine, each beside what it could at best take."""
