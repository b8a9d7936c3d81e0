"""Decides what a processor does next: pure, so that it is explored in simulated time."""
