"""flashback: the first bad step of a training run, found and explained."""
