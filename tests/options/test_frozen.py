"""Digests by which a process keeps what it has made for some options."""

from kshare.options.frozen import Properties, Secret, digest_of


def test_a_digest_tells_values_apart_and_shows_no_secret() -> None:
    made = [digest_of((Properties({"password": text}), Secret(text))) for text in "aab"]
    assert made[0] == made[1] != made[2]
    assert len(made[0]) == 32
