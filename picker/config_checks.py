"""What a configuration must fulfil that its types cannot say: names that exist, URLs that are some."""

from __future__ import annotations

from picker.config import Config
from picker.redisview.url import BadRedisUrl, parse_url
from picker.scheduling.decide import term_names
from picker.scheduling.policies import Policy, UnknownPolicy, find


class BadSetting(ValueError):
    """A setting whose value makes no sense here. The message names it and what it may be."""


def check(config: Config) -> None:
    """Raises BadSetting. Touches nothing outside: no file, no socket."""
    _policy("policy", config.policy)
    for profile in config.profiles:
        setting = f"profiles, {profile.name!r}"
        policy = _policy(f"{setting}, policy", profile.policy or config.policy)
        if unknown := set(profile.weights) - term_names(policy):
            raise BadSetting(
                f"{setting}, weights: {policy.name} has no term {', '.join(sorted(unknown))}; "
                f"its terms are {', '.join(sorted(term_names(policy)))}"
            )
    try:
        parse_url(config.redis if isinstance(config.redis, str) else config.redis.url)
    except BadRedisUrl as error:
        raise BadSetting(f"redis: {error}") from None


def _policy(setting: str, name: str) -> Policy:
    try:
        return find(name)
    except UnknownPolicy as error:
        raise BadSetting(f"{setting}: {error}") from None
