"""Endpoints in one spelling."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from picker.fleet.endpoints import canonical, host_of


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
