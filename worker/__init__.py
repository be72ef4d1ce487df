"""The model and the batching loop around it."""
