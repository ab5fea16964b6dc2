"""Chat templates render as `apply_chat_template` of transformers does."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgepipe.errors import TokenizerError
from edgepipe.runtimes.llm.chat_template import ChatTemplate

SYSTEM = {"role": "system", "content": "Be brief; answer <b>& 'so'</b>."}
USER = {"role": "user", "content": '  What is "1 + 1"?\n日本語 é 👍  '}
ASSISTANT = {"role": "assistant", "content": "2"}
CONVERSATIONS = [
    [USER],
    [SYSTEM, USER],
    [USER, ASSISTANT, USER],
    [SYSTEM, USER, ASSISTANT, USER, ASSISTANT],
]

TEMPLATES = {
    "markers": """{% for message in messages %}
    {% if loop.first and message['role'] != 'system' %}
<|system|>
You help.
    {% endif %}
<|{{ message.role }}|>
{{ message['content'] | trim }}{{ eos_token }}
{% endfor %}
{% if add_generation_prompt %}
<|assistant|>
{% endif %}
""",
    "brackets": """{{ bos_token }}{%- set ns = namespace(system='', count=0) -%}
{%- for m in messages -%}
  {%- if m.role == 'system' -%}{%- set ns.system = '<<SYS>>\\n' + m.content.strip() + '\\n<</SYS>>\\n\\n' -%}
  {%- elif m.role == 'user' -%}[INST] {{ ns.system ~ m.content }} [/INST]{%- set ns.system = '' -%}
    {%- set ns.count = ns.count + 1 -%}
  {%- else -%}{{ ' ' ~ m.content ~ ' ' ~ eos_token }}{%- endif -%}
{%- endfor -%}{{ '#%d' | format(ns.count) }}""",
    "json": """{{ messages | tojson }}
{{ messages[0] | tojson(indent=2) }} {{ {'b': 'é<', 'a': none} | tojson(sort_keys=true, separators=(',', ':')) }}
{{ messages | map(attribute='role') | list | join(', ') }}{{ pad_token }}{{ unk_token }}|{{ mask_token }}""",
    "loops": """{%- macro turn(m) -%}<{{ m.role[0] | upper }}>{{ m.content }}</{{ m.role[0] | upper }}>{%- endmacro -%}
{%- for m in messages[::-1] -%}
    {%- if loop.index0 > 2 %}{% break %}{% endif -%}
    {%- if m.role == 'system' %}{% continue %}{% endif -%}
    {{ turn(m) }}{{ '...' if not loop.last else '' }}
{%- endfor -%}
{%- if tools is not none %}tools{% endif %}{% if documents %}documents{% endif %}
{% if absent is defined %}absent{% endif %}""",
    "generation": """{% set said = 'before' %}{% for m in messages %}
{% if m.role == 'assistant' %}{% generation %}{% set said = m.content %}{{ said }}{{ eos_token }}{% endgeneration %}
{% else %}{{ m.content }}{% endif %}{% endfor %}{{ said }}""",
    "date": """{{ strftime_now('%Y') }} {{ range(3) | list }} {{ dict(a=1) }}
{% for m in messages %}{{ m.content }}{% endfor %}""",
}
SPECIAL_TOKENS = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}


@pytest.fixture(scope="module")
def save(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """`save(template)` → (folder of a tokenizer saved by transformers, that tokenizer)."""
    tokenizers = pytest.importorskip("tokenizers")
    transformers = pytest.importorskip("transformers")

    def build(template: Any) -> tuple[Path, Any]:
        folder = tmp_path_factory.mktemp("chat")
        bpe = tokenizers.Tokenizer(tokenizers.models.BPE())
        tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=bpe, chat_template=template, **SPECIAL_TOKENS)
        tokenizer.save_pretrained(folder)
        return folder, tokenizer

    return build


def load(folder: Path) -> ChatTemplate:
    template = ChatTemplate.load(folder)
    assert template is not None
    return template


@pytest.mark.parametrize("name", TEMPLATES)
def test_renders_as_transformers_does(save: Any, name: str) -> None:
    folder, tokenizer = save(TEMPLATES[name])
    template = load(folder)
    for messages in CONVERSATIONS:
        for prompt in (True, False):
            expected = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=prompt)
            assert template.render(messages, prompt) == expected
            assert expected


@settings(max_examples=50)
@given(
    messages=st.lists(
        st.fixed_dictionaries(
            {"role": st.sampled_from(["system", "user", "assistant"]), "content": st.text(max_size=20)}
        ),
        min_size=1,
        max_size=4,
    )
)
@pytest.mark.parametrize("name", ["markers", "brackets", "json", "loops"])
def test_renders_any_messages_as_transformers_does(save: Any, name: str, messages: list[dict[str, str]]) -> None:
    tokenizer = _tokenizer_of(save, name)
    ours = ChatTemplate(TEMPLATES[name], SPECIAL_TOKENS)
    assert ours.render(messages) == tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)


_made: dict[str, Any] = {}


def _tokenizer_of(save: Any, name: str) -> Any:
    if name not in _made:
        _made[name] = save(TEMPLATES[name])[1]
    return _made[name]


def write(folder: Path, **config: Any) -> Path:
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


def test_the_file_goes_before_the_configuration(tmp_path: Path) -> None:
    write(
        tmp_path, chat_template="config {{ bos_token }}", bos_token={"content": "<s>", "lstrip": False}, eos_token=None
    )
    assert load(tmp_path).render([USER]) == "config <s>"
    (tmp_path / "chat_template.jinja").write_text("file é {{ bos_token }}{{ eos_token }}", encoding="utf-8")
    assert load(tmp_path).render([USER]) == "file é <s>"


def test_of_named_templates_the_default_is_taken(tmp_path: Path) -> None:
    named = [{"name": "tool_use", "template": "tools"}, {"name": "default", "template": "plain"}]
    assert load(write(tmp_path, chat_template=named)).render([USER]) == "plain"
    with pytest.raises(TokenizerError, match=r'no chat template is named "default" \(found: tool_use\)'):
        ChatTemplate.load(write(tmp_path, chat_template=named[:1]))


def test_a_model_without_a_template_has_none(tmp_path: Path) -> None:
    assert ChatTemplate.load(tmp_path) is None
    assert ChatTemplate.load(write(tmp_path, bos_token="<s>")) is None


def test_the_date_is_today() -> None:
    before = datetime.now().strftime("%d %b %Y")
    rendered = ChatTemplate("{{ strftime_now('%d %b %Y') }}", {}).render([USER])
    assert rendered in (before, datetime.now().strftime("%d %b %Y"))


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("{{ raise_exception('roles must\n alternate') }}", "refuses these messages: roles must alternate"),
        ("{{ messages[0].nothing.at_all }}", "refuses these messages: .*nothing"),
        ("{{ messages[7]['content'] + 'x' }}", "refuses these messages: "),
        ("{{ 1 + messages[0].content }}", "refuses these messages: unsupported operand"),
        ("{{ messages.append(1) }}", "refuses these messages: .*unsafe"),
        ("{{ ''.__class__.__mro__ }}", "refuses these messages: .*unsafe"),
    ],
)
def test_errors_of_a_template_are_one_line(source: str, said: str) -> None:
    with pytest.raises(TokenizerError, match=said) as caught:
        ChatTemplate(source, {}, "some/chat_template.jinja").render([USER])
    assert str(caught.value).startswith("some/chat_template.jinja: ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("chat_template.jinja", b"{% for m in messages %}\n{{ m", r"chat_template\.jinja: .*damaged at line"),
        ("chat_template.jinja", b"ab\xff", r"chat_template\.jinja is damaged: no UTF-8 at byte 2"),
        ("tokenizer_config.json", b"", r"tokenizer_config\.json is damaged: no JSON"),
        ("tokenizer_config.json", b"[]", r"tokenizer_config\.json is damaged: expected a JSON object"),
        ("tokenizer_config.json", b'{"chat_template": 1}', "chat_template is of type int: expected a text"),
        ("tokenizer_config.json", b'{"chat_template": [{"name": "x"}]}', 'no chat template is named "default"'),
        ("tokenizer_config.json", b'{"chat_template": [{"name": "default"}]}', 'no chat template is named "default"'),
    ],
)
def test_damaged_files_are_named(tmp_path: Path, name: str, content: bytes, said: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(TokenizerError, match=said) as caught:
        ChatTemplate.load(tmp_path)
    assert str(tmp_path / name) in str(caught.value)
    assert "\n" not in str(caught.value)
