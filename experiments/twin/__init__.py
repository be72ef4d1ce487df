"""Cells in virtual time: the router's core and the paced machine without sockets and without sleeping."""
