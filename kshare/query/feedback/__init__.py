"""Feedback: tasks tell the planner where they ended, over one small TCP connection each."""
