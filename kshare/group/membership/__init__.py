"""A member of a group: it joins, plans if it leads, and says that it is alive."""
