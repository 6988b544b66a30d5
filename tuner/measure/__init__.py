"""How fast a server answers: load, statistics, the operator's own workload, and what the hardware allows."""
