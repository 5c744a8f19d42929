"""How much memory a run will use, and how much it used."""
