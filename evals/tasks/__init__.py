"""Generated tasks for K3-nano: repositories, instructions, hidden tests, and how to solve them."""
