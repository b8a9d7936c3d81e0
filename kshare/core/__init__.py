"""The pure core: values in, values out.

Law: nothing here waits, reads a clock, draws a random number, logs or starts a thread; the import
contracts of ``pyproject.toml`` check it. Equal input gets equal answers.
"""
