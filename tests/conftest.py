"""What all tests share."""

from hypothesis import HealthCheck, settings

# How long an example takes says something about the machine and who else uses it, not about the code.
settings.register_profile("picker", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("picker")
