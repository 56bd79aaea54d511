"""What other evaluation frameworks read and run; each imports its framework only when used."""
