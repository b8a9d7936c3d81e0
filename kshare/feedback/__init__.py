"""Tasks tell the planner where they ended. Best effort: what is missing is found in the log."""
