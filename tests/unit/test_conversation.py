"""Messages as the template sees them, and what a template is like."""

from __future__ import annotations

from typing import Any

import pytest

from picker.prompts import chain
from picker.prompts.conversation import conversation
from picker.prompts.reader import PromptReader, Rung
from picker.prompts.template import CannotRender, ChatTemplate
from picker.requests.model import ChatPrompt
from tests import tiny_models


def as_string(*messages: dict[str, Any], knows_developer: bool = True) -> list[dict[str, Any]]:
    return conversation(messages, wants_parts=False, knows_developer=knows_developer)


def as_parts(*messages: dict[str, Any]) -> list[dict[str, Any]]:
    return conversation(messages, wants_parts=True, knows_developer=True)


def user(*parts: Any) -> dict[str, Any]:
    return {"role": "user", "content": list(parts)}


def test_parts_become_lines_for_a_template_that_takes_a_string() -> None:
    assert as_string(user({"type": "text", "text": "a"}, "b"))[0]["content"] == "a\nb"


def test_a_string_becomes_a_part_for_a_template_that_takes_parts() -> None:
    assert as_parts({"role": "user", "content": "a"})[0]["content"] == [{"type": "text", "text": "a"}]


def test_parts_without_text_are_skipped() -> None:
    assert as_string(user({"type": "text"}, {"type": "text", "text": None}, "b"))[0]["content"] == "b"


def test_fields_that_nobody_knows_stay_with_a_part() -> None:
    part = {"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}
    assert as_parts(user(part))[0]["content"] == [part]


def test_no_content_is_an_empty_one() -> None:
    assert as_string({"role": "user"})[0]["content"] == ""
    assert as_parts({"role": "user", "content": None})[0]["content"] == []


@pytest.mark.parametrize(
    "message",
    [
        {},
        {"role": 7, "content": ""},
        user(5),
        user(None),
        user({"type": "hologram"}),
        user({"type": "text", "text": 5}),
    ],
)
def test_what_no_engine_accepts_cannot_be_rendered(message: dict[str, Any]) -> None:
    with pytest.raises(CannotRender):
        as_string(message)


@pytest.mark.parametrize(
    ("sent", "seen"),
    [
        ('{"a": 1}', {"a": 1}),
        ({"a": 1}, {"a": 1}),
        ("", {}),
        (None, {}),
        ("no JSON", {}),
        ("[1]", {}),
        ("[" * 9999, {}),
    ],
)
def test_a_calls_arguments_are_an_object(sent: Any, seen: dict[str, Any]) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": sent}}
    message = as_string({"role": "assistant", "content": None, "tool_calls": [call]})[0]
    assert message["tool_calls"] == [{**call, "function": {"name": "f", "arguments": seen}}]


def test_an_empty_list_of_calls_is_none() -> None:
    assert as_string({"role": "assistant", "content": "x", "tool_calls": []}) == [{"role": "assistant", "content": "x"}]


@pytest.mark.parametrize("name", ["reasoning", "reasoning_content"])
def test_reasoning_goes_by_all_of_its_names(name: str) -> None:
    message = as_string({"role": "assistant", "content": "x", name: "hm"})[0]
    assert (message["reasoning"], message["reasoning_content"], message["thinking"]) == ("hm", "hm", "hm")


def test_a_tools_answer_is_a_string_even_among_parts() -> None:
    answer = {"role": "tool", "tool_call_id": "c", "content": [{"type": "text", "text": t} for t in "ab"]}
    assert as_parts(answer) == [{"role": "tool", "tool_call_id": "c", "content": "a\nb"}]


def test_developers_are_the_system_to_templates_that_do_not_know_them() -> None:
    messages = ({"role": "user", "content": "u"}, {"role": "developer", "content": "d", "tools": []})
    seen = as_string({"role": "system", "content": "s"}, *messages, knows_developer=False)
    assert seen == [{"role": "system", "content": "s\n\nd"}, {"role": "user", "content": "u"}]


def test_billing_lines_are_dropped_from_the_system() -> None:
    text = "x-anthropic-billing-header: cch=1\nBe brief."
    assert as_string({"role": "system", "content": text})[0]["content"] == "Be brief."
    assert as_parts({"role": "system", "content": [{"type": "text", "text": text}]})[0]["content"] == [
        {"type": "text", "text": "Be brief."}
    ]


LONG = "word " * 200
SHOW = "{% macro show(c) %}{% for p in c %}{{ p }}{% endfor %}{% endmacro %}"


def each(body: str) -> str:
    """A template that does this with each message."""
    return "{% for m in messages %}" + body + "{% endfor %}"


@pytest.mark.parametrize(
    ("template", "takes_parts"),
    [
        (each("{{ m.content }}"), False),
        (each("{% for p in m.content %}{{ p }}{% endfor %}"), True),
        (each("{% for p in m['content'] | list %}{{ p }}{% endfor %}"), True),
        (each("{% for t in m.tools %}{{ t }}{% endfor %}"), False),
        (each("{% set content = m.content %}{% for p in content %}{{ p }}{% endfor %}"), True),
        (each("{% set c = m.content %}{% for p in c %}{{ p }}{% endfor %}"), False),
        ("{% set r = messages[1:] %}{% for m in r %}{% for p in m.content if p %}{% endfor %}{% endfor %}", True),
        ("{% for m in messages | reverse %}{% for p in m.content %}{% endfor %}{% endfor %}", True),
        (SHOW + each("{{ show(m.content) }}"), True),
        (SHOW + each("{{ show(c=m.content) }}"), True),
        (SHOW + each("{{ show(m.tools) }}"), False),
    ],
)
def test_a_template_that_loops_over_content_takes_parts(template: str, takes_parts: bool) -> None:
    assert ChatTemplate(template).wants_parts is takes_parts


def test_a_template_that_does_not_compile_says_so() -> None:
    with pytest.raises(CannotRender, match="does not compile"):
        ChatTemplate("{% for")


LATE = [
    {"role": "system", "content": "a"}, {"role": "user", "content": LONG},
    {"role": "system", "content": "b"}, {"role": "user", "content": LONG},
]  # fmt: skip


@pytest.mark.parametrize(("family", "is_kept"), [("parts", True), ("instructions", False)])
def test_late_system_messages_move_to_the_front_where_the_template_wants_them_there(family: str, is_kept: bool) -> None:
    model = tiny_models.load(family)
    assert model.template is not None
    assert model.template.takes_late_system is is_kept
    reader = PromptReader({"m": model})
    found = reader.read(ChatPrompt(LATE[:3], joins_system=True), "m", "", "")
    moved = [{"role": "system", "content": "ab"}, LATE[1]]
    assert found == reader.read(ChatPrompt(LATE[:3] if is_kept else moved), "m", "", "")
    assert found.rung is Rung.TOKENS


@pytest.mark.parametrize("hostile", ["{{ ''.__class__.__mro__[1] }}", "{{ messages.append(1) }}", "{{ range(10**9) }}"])
def test_a_template_stays_in_its_box(hostile: str) -> None:
    template = ChatTemplate(hostile)
    with pytest.raises(CannotRender):
        template.render([])


IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}


@pytest.mark.parametrize("family", ["parts", "chatml"])
def test_an_image_ends_the_chain_at_the_message_that_has_it(family: str) -> None:
    model = tiny_models.load(family)
    reader = PromptReader({"m": model})
    before = [{"role": "user", "content": LONG}, {"role": "assistant", "content": LONG}]
    behind = [{"role": "user", "content": LONG}]
    found = reader.read(ChatPrompt([*before, user({"type": "text", "text": LONG}, IMAGE), *behind]), "m", "", "")
    assert model.template is not None
    text = model.template.render(before, add_generation_prompt=False)
    tokens = model.encode(text, add_special_tokens=False)
    assert (found.rung, found.exact) == (Rung.PART, True)
    assert found.blocks == chain.index_blocks(chain.scope("m"), tokens) != []
    assert found.prompt_tokens > len(tokens)


def test_chats_with_tools_have_a_template_of_their_own_where_the_model_has_one() -> None:
    from picker.prompts.tokenizer import ModelTokenizer

    plain, tools = ChatTemplate("plain" * 99), ChatTemplate("tools" * 99)
    model = ModelTokenizer(tiny_models.FAMILIES["bars"].make(), plain, tools)
    reader = PromptReader({"m": model})
    tool = {"type": "function", "function": {"name": "f"}}
    one, other = (
        reader.read(ChatPrompt([{"role": "user", "content": "x"}], tools=each), "m", "", "") for each in (None, [tool])
    )
    tokens = [model.encode(template.source, add_special_tokens=False) for template in (plain, tools)]
    assert [one.prompt_tokens, other.prompt_tokens] == list(map(len, tokens))
    assert one.blocks != other.blocks
