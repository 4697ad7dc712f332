"""The scheduler under simulation: the real runtime over a device with its own truth, faults and an ordered clock."""
