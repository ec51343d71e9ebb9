"""Orders of a platform: what they say, what is refused and how, what follows; and the documents of docs/platform.md."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest
import yaml
from typer.testing import CliRunner

from picker.admission.settings import AdmissionSettings, Quota
from picker.cli import app
from picker.config import Config
from picker.config_files import ConfigError
from picker.fleet.view import View
from picker.platform.orders import SECTIONS, Orders, of_fields
from picker.platform.state import Followed, PickerState, State, models, workers
from picker.platform_link import followed
from picker.scaling.residency import Residency
from picker.settings.reference import json_schema
from tests.unit.fleets import fleet

PAGE = (Path(__file__).parents[2] / "docs" / "platform.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


def test_the_orders_of_the_page_can_be_followed_and_fit_their_schema() -> None:
    document = yaml.safe_load(blocks("yaml")[1])
    orders = msgspec.convert(document, Orders)
    assert all(getattr(orders, section) for section in SECTIONS)
    jsonschema.validate(document, json_schema(Orders))
    [command] = re.findall(r"HSET picker1:\{default\}:platform (.*)", PAGE)
    fields = dict(re.findall(r"(\w+) (?:'([^']*)'|17)", command)) | {"revision": "17"}
    assert of_fields({name: text.encode() for name, text in fields.items()}, "key").cordons == {"vllm-3": "moves"}


def test_the_state_of_the_page_fits_its_schema() -> None:
    document = json.loads(blocks("json")[0])
    jsonschema.validate(document, json_schema(State))
    assert json.loads(msgspec.json.encode(msgspec.convert(document, State))) == document


def test_a_view_is_told_as_its_schema_says() -> None:
    view = fleet(3)
    view.cordon({"w1"})
    picker = PickerState(process="p", at=1.0, pickers=1, degraded=(), orders=Followed())
    state = State(picker=picker, workers=workers(view, 0.0), models=models({}, {"sql": Residency(2, 1)}))
    jsonschema.validate(json.loads(msgspec.json.encode(state)), json_schema(State))
    assert [each.is_usable for each in state.workers.values()] == [True, False, True]
    assert state.models["sql"].preload == 1
    assert workers(View(), 0.0) == {}


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"quotas": b"["}, r"key: quotas: is not JSON: "),
        ({"quotas": b"\xff"}, "key: quotas: is not JSON"),
        ({"revision": b"\xff"}, "key: revision: is not text"),
        ({"quota": b"[]"}, "key: quota is not a setting; did you mean quotas"),
        ({"quotas": b"{}"}, "key: quotas: expected `array | null`, got `object`"),
        ({"quotas": b'[{"tokens_per_sec": 1}]'}, "quotas.* tokens_per_sec|tokens_per_sec is not a setting"),
        ({"quotas": b'[{"tokens_per_s": 0}]'}, r"key: quotas\[0\].tokens_per_s: expected `float` > 0"),
        ({"tenants": b'{"a": "x"}'}, r"key: tenants\[...\]: expected `float`, got `str`"),
        ({"tenants": b'{"a": -1}'}, r"key: tenants\[...\]: expected `float` > 0"),
        ({"cordons": b'["w1"]'}, "key: cordons: expected `object | null`, got `array`"),
        ({"placement": b'{"m": "w1"}'}, r"key: placement\[...\]: expected `array`, got `str`"),
        ({"placement": b'{"m": [""]}'}, "length >= 1"),
        ({"cordons": json.dumps({"w": "x" * 600}).encode()}, "length <= 512"),
        ({"quotas": json.dumps([{}] * 1001).encode()}, "length <= 1000"),
        ({"quotas": b"[" * 100_000}, "key: quotas: is not JSON"),
    ],
)
def test_what_cannot_be_followed_says_what_is_wrong_and_where(fields: dict[str, bytes], expected: str) -> None:
    with pytest.raises(ConfigError, match=expected):
        of_fields(fields, "key")


def test_a_configuration_under_orders_keeps_what_they_leave_out() -> None:
    own = Config(
        admission=AdmissionSettings(quotas=(Quota(requests_per_s=1.0),), tenants={"a": 2.0}), placement={"m": ("w1",)}
    )
    assert followed(own, Orders()) == own
    ordered = followed(own, Orders(quotas=(), placement={}))
    assert (ordered.admission.quotas, ordered.admission.tenants, ordered.placement) == ((), {"a": 2.0}, {})
    assert followed(own, Orders(tenants={"b": 1.0})).admission.tenants == {"b": 1.0}


def test_the_commands_print_schemas_and_check_files(tmp_path: Path) -> None:
    run: Any = CliRunner().invoke
    for option, struct in (([], Orders), (["--state"], State)):
        assert json.loads(run(app, ["platform", "schema", *option]).output) == json.loads(
            msgspec.json.encode(json_schema(struct))
        )
    path = tmp_path / "orders.yaml"
    path.write_text(blocks("yaml")[1])
    assert "quotas, tenants, cordons, placement given" in run(app, ["platform", "check", str(path)]).output
    path.write_text("quotas: 3\n")
    refused = run(app, ["platform", "check", str(path)])
    assert refused.exit_code == 2
    assert "orders.yaml: quotas: expected" in refused.output
