"""What figures are made of, and one file for each kind. No torch; matplotlib only when drawing."""
