"""Who may enter, and when: the admission queue and its policies."""
