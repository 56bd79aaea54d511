"""Measuring agents: tasks, runs, rates."""
