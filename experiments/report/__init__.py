"""The report that people look at: one page for each run, and its main picture as a file."""
