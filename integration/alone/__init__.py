"""Tests that nothing else may run beside: ``make test-cluster``."""
