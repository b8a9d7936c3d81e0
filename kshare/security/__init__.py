"""Java-style ``kafka.*`` options -> TLS contexts, SASL mechanisms, librdkafka's configuration.

Guarantee: kshare's own connections and librdkafka get the same bytes from the same options, so that
both are accepted or refused alike. What is wrong with a store or a token that the user named is an
:class:`~kshare.errors.OptionsError` that names the option; what an authority or a broker refuses is
an :class:`~kshare.errors.AuthenticationError`; what may pass is an ``OSError``. No secret is in any
text, and kshare leaves no unencrypted key on a disk. Files are read at each new connection, so that
rotated certificates and tokens are found.
"""
