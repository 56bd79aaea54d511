"""What judges a task after the agent has ended; copied into every task, so it stands alone."""
