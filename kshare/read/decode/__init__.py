"""Record batches v2 -> Arrow, by compiled code."""
