"""What processes say to each other and what they stamp."""
