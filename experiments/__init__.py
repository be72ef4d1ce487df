"""Starts, supervises, analyses and shows runs made of the other roles."""
