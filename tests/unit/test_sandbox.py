"""The quicker sandbox answers as Jinja's own does."""

from __future__ import annotations

from typing import Any

import pytest
from jinja2.exceptions import SecurityError, UndefinedError
from jinja2.runtime import Undefined
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from picker.prompts.sandbox import Sandbox

OBJECTS: list[Any] = [
    "text",
    [1],
    {"role": "user", "items": 1, "__class__": 2},
    (1,),
    5,
    None,
    Namespace(a=1),
    print,
    {1},
]
NAMES = sorted({name for each in OBJECTS for name in dir(each)} | {"role", "a", "missing", "_x", "gi_frame", ""})


def answer(environment: ImmutableSandboxedEnvironment, each: Any, name: str) -> Any:
    found = environment.getattr(each, name)
    if isinstance(found, Undefined):
        try:
            return type(found), found._undefined_message, str(found)
        except SecurityError as error:
            return type(found), str(error)
    return repr(found)


@pytest.mark.parametrize("each", OBJECTS, ids=lambda each: type(each).__name__)
def test_every_attribute_of_plain_objects(each: Any) -> None:
    quick, slow = Sandbox(), ImmutableSandboxedEnvironment()
    assert {name: answer(quick, each, name) for name in NAMES} == {name: answer(slow, each, name) for name in NAMES}


@pytest.mark.parametrize(
    "source",
    [
        "{% for x in [1, 2] %}{{ loop.index0 }}{{ loop.last }}{{ loop.previtem }}{{ loop.missing }}{% endfor %}",
        "{% for x in [1, 2] %}{{ loop._length }}{% endfor %}",
        "{{ '{0.__class__}'.format(1) }}",
        "{{ 'x'.format_map({}) }}",
        "{% set n = namespace(a=1) %}{% set n.b = 2 %}{{ n.a }}{{ n.b }}{{ n.c }}{{ n.__class__ }}",
        "{{ {'keys': 1}.keys() | list }}{{ {'a': 1}['a'] }}{{ {}.a }}",
        "{{ [].append(1) }}",
        "{{ {}.update(a=1) }}",
    ],
)
def test_templates_give_the_same_text_or_the_same_error(source: str) -> None:
    def outcome(environment: ImmutableSandboxedEnvironment) -> str:
        try:
            return environment.from_string(source).render()
        except Exception as error:
            return repr(error)

    assert outcome(Sandbox()) == outcome(ImmutableSandboxedEnvironment())


@pytest.mark.parametrize("value", OBJECTS, ids=lambda each: type(each).__name__)
@pytest.mark.parametrize("name", ["role", "items", "get", "__class__", "upper", "a", "missing", "_x"])
@pytest.mark.parametrize(
    "source", ["{{ m.NAME }}", "{{ m['NAME'] }}", "{{ -m.NAME if m.NAME is number else m.NAME is defined }}"]
)
def test_a_variables_fields_are_those_that_the_slow_one_gives(value: Any, name: str, source: str) -> None:
    def outcome(environment: ImmutableSandboxedEnvironment) -> str:
        try:
            return environment.from_string(source.replace("NAME", name)).render(m=value)
        except Exception as error:
            return repr(error)

    assert outcome(Sandbox()) == outcome(ImmutableSandboxedEnvironment())


def test_a_field_of_something_that_is_undefined_is_refused_alike() -> None:
    for source in ("{{ nobody.role }}", "{{ nobody['role'] }}", "{{ m.role.first.second }}"):
        errors = []
        for environment in (Sandbox(), ImmutableSandboxedEnvironment()):
            with pytest.raises(UndefinedError) as caught:
                environment.from_string(source).render(m={"role": {}})
            errors.append(str(caught.value))
        assert errors[0] == errors[1]
