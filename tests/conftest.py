"""What all unit tests share."""

from hypothesis import settings

# No test depends on how fast the machine is.
settings.register_profile("kshare", deadline=None)
settings.load_profile("kshare")
