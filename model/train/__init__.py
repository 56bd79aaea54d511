"""Training: the optimiser, the balancer, the data and the loop that made K3-nano."""
