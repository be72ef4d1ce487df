"""The capacity of a server: the highest rate that meets objectives, searched for in virtual time."""
