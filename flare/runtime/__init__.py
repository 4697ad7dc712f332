"""The host half: requests, memory, scheduling, policy and text over a `Device`. No torch."""
