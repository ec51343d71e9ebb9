"""Endpoints in one spelling."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from picker.config import Config
from picker.fleet.endpoints import canonical, host_of, is_reachable, networks


@pytest.mark.parametrize(
    ("text", "spelling"),
    [
        ("10.0.0.5:8000", "10.0.0.5:8000"),
        (" 10.0.0.5:08000 ", "10.0.0.5:8000"),
        ("10.0.0.5", "10.0.0.5"),
        ("[FD00:0:0::5]:8000", "[fd00::5]:8000"),
        ("fd00:0:0::5", "[fd00::5]"),
        ("[fd00::5]", "[fd00::5]"),
        ("worker-1:8000", None),
        ("10.0.0.5:0", None),
        ("10.0.0.5:65536", None),
        ("10.0.0.5:" + 5000 * "9", None),
        ("10.0.0.5:\u0668", None),
        ("10.0.0.5:+80", None),
        ("", None),
        (":80", None),
    ],
)
def test_spellings(text: str, spelling: str | None) -> None:
    assert canonical(text) == spelling


@given(st.text(max_size=30) | st.from_regex(r"[\[\]0-9a-f:.%]{0,20}"))
def test_any_text_has_one_spelling_or_none(text: str) -> None:
    found = canonical(text)
    assert found is None or canonical(found) == found


@given(st.ip_addresses(), st.integers(1, 65535))
def test_every_address_with_a_port_is_an_endpoint(address: object, port: int) -> None:
    host = f"[{address}]" if ":" in str(address) else str(address)
    found = canonical(f"{host}:{port}")
    assert found is not None
    assert found.endswith(f":{port}")
    assert host_of(found) == canonical(str(address))


@pytest.mark.parametrize(
    ("endpoint", "within", "is_sent_to"),
    [
        ("10.0.0.5:8000", (), True),
        ("127.0.0.1:8000", (), True),
        ("[fd00::5]:8000", (), True),
        ("169.254.169.254:80", (), False),
        ("0.0.0.0:9901", (), False),
        ("[::]:9901", (), False),
        ("224.0.0.1:80", (), False),
        ("10.0.0.5:8000", ("10.0.0.0/8", "fd00::/8"), True),
        ("[fd00::5]:8000", ("10.0.0.0/8", "fd00::/8"), True),
        ("127.0.0.1:9901", ("10.0.0.0/8", "fd00::/8"), False),
        ("169.254.7.7:80", ("169.254.7.0/24",), True),
    ],
)
def test_only_addresses_that_workers_may_have_are_sent_to(
    endpoint: str, within: tuple[str, ...], is_sent_to: bool
) -> None:
    assert is_reachable(endpoint, networks(within)) is is_sent_to


@pytest.mark.parametrize("text", ["10.0.0.5/8", "workers", "10.0.0.0/40"])
def test_what_is_no_network_is_named(text: str) -> None:
    with pytest.raises(ValueError, match="write a network such as"):
        networks([text])
    with pytest.raises(ValueError, match="worker_networks: "):
        Config(worker_networks=(text,))
