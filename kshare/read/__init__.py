"""The read path: bytes of a Fetch response -> Arrow record batches.

Law: nothing is imported here, so that planners can import its small modules (``ends``) without the
compiled kernels. Cost: none.
"""
