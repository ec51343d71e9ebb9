"""Redis URLs, without their passwords, and waits between attempts."""

import random

import pytest

from picker.redisview.connection import Backoff, connect
from picker.redisview.keys import Keys
from picker.redisview.url import BadRedisUrl, redacted

PASSWORDS = [
    "redis://user:s3cret@host:6379/0",
    "redis://:s3cret@host:6379/0",
    "redis://:s3c/s3cret@host:6379/0",
    "redis://:s3c?s3cret@host:6379/0",
    "redis://:s3c#s3cret@host:6379/0",
    "redis://:s3c@s3cret@host:6379/0",
    "unix:///run/redis.sock?password=s3cret",
    "unix:///run/redis.sock?password=s3c@s3cret",
    "http://user:s3cret@host",
    "redis://:s3cret@[host",
    "s3cret",
]


@pytest.mark.parametrize("url", PASSWORDS)
def test_no_part_of_a_password_is_printed(url: str) -> None:
    printed = redacted(url)
    try:
        connect(url, Keys("pool"))
    except BadRedisUrl as error:
        printed += str(error)
    assert "s3c" not in printed


@pytest.mark.parametrize(
    ("url", "printed"),
    [
        ("rediss://user:pw@host:6380/2?db=1", "rediss://host:6380/2"),
        ("unix:///run/redis.sock?db=1", "unix:///run/redis.sock"),
        ("redis://[::1]:6379", "redis://[::1]:6379"),
    ],
)
def test_the_address_is_printed(url: str, printed: str) -> None:
    assert redacted(url) == printed


@pytest.mark.parametrize("url", ["http://host", "host:6379", "redis://host:port", "redis://host/0?socket_timeout=soon"])
def test_a_url_that_names_no_redis_is_refused(url: str) -> None:
    with pytest.raises(BadRedisUrl, match="not a Redis URL"):
        connect(url, Keys("pool"))


def test_waits_double_with_jitter_up_to_a_bound_and_begin_anew_after_a_success() -> None:
    backoff = Backoff(random.Random(1), first_s=0.1, longest_s=1.0)
    for step in (0.1, 0.2, 0.4, 0.8, 1.0, 1.0):
        assert step / 2 <= backoff.next() <= step
    backoff.reset()
    assert backoff.next() <= 0.1
