"""The command ``trainplan``."""
