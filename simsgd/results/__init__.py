"""Run folders, read: tables, seconds on a network, figures, pages; none of it needs torch."""
