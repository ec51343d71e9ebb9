"""What all tests share."""

from hypothesis import HealthCheck, settings

_LONGEST_NAME = 16

# How long an example takes says something about the machine and who else uses it, not about the code.
settings.register_profile("picker", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("picker")


def pytest_make_parametrize_id(val: object) -> str | None:
    """Long bytes are no names: packed ones hold the time, and the processes of pytest-xdist must agree on names."""
    return f"{len(val)} bytes" if isinstance(val, bytes) and len(val) > _LONGEST_NAME else None
