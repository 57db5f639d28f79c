"""A mesh's plan: who owns what, who needs what of whom, and what that asks of every rank."""
