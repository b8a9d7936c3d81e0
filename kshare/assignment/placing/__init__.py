"""Placing tasks on processes: the algorithms of the task assignors."""
