"""Tools for groups: who owns what, how far a group is, resets, restoration."""
