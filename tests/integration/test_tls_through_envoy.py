from __future__ import annotations

import pytest

from picker.config import Tls
from tests.integration.real_envoy import MODES, real_envoy, tell

pytestmark = pytest.mark.envoy


async def test_envoy_and_the_picker_speak_tls_as_gateways_do_it() -> None:
    async with real_envoy(tls=Tls()) as envoy:
        for mode in MODES:
            assert (await tell(envoy.urls[mode], b'{"model": "m"}')).port == envoy.upstreams[0], mode
        await envoy.idle()
