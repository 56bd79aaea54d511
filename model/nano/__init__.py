"""K3-nano: weights, vocabulary and what the harness tells it."""
