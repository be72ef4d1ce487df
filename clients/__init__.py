"""The crowd: arrivals, workloads and the open-loop sender."""
