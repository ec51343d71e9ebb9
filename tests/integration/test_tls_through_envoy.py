from __future__ import annotations

import pytest

from picker.config import Tls
from tests.integration.ext_proc import TRANSPORTS
from tests.integration.real_envoy import MODES, real_envoy, tell

pytestmark = pytest.mark.envoy


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_envoy_and_the_picker_speak_tls_as_gateways_do_it(transport: str) -> None:
    async with real_envoy(transport, tls=Tls()) as envoy:
        for mode in MODES:
            assert (await tell(envoy.urls[mode], b'{"model": "m"}')).port == envoy.upstreams[0], mode
        await envoy.idle()
