"""Reads run folders: tables, prices on a network, figures, pages. Needs no torch."""
