"""`python -m simsgd` is `simsgd`."""

from .cli import main

main()
