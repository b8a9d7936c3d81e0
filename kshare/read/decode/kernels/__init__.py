"""The source of the compiled code, for numba; only a machine that has to compile imports it."""
