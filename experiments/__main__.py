"""`python -m experiments` is `headway`: how the supervisor starts the roles with its own interpreter."""

from experiments.cli import main

main()
