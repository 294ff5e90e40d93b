"""Looking for the best plan, and saying what was found."""
