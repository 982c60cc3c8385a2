"""Messages to ids and back; the same as transformers makes of the same folder."""

from __future__ import annotations

import json
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jaz_actors.backends.chat_format import ChatFormat, HFChatFormat
from jaz_actors.backends.conditioning import prompt_of
from jaz_actors.backends.embedded.launch import TINY_POLICY
from jaz_actors.errors import ConfigurationError
from jaz_actors.messages import Message, Role

CHATML = (
    "{{ bos_token }}{% for message in messages %}\n"
    "  {% if loop.first and message.role == 'system' %}[{{ message.content }}]{% continue %}{% endif %}\n"
    "  {%- if message.role == 'assistant' %}{% generation %}<|a|>{{ message.content }}{% endgeneration %}\n"
    "{% else %}<|u|>{{ message.content }}{% endif %}{{ eos_token }}\n"
    "{% endfor %}{% if tools is not none %}tools{% endif %}{% if add_generation_prompt %}<|a|>{% endif %}"
)
SPECIAL = ["<s>", "<|end|>", "<|u|>", "<|a|>"]


def messages(*said: tuple[Role, str]) -> list[Message]:
    return [Message(role, text, "seed", number) for number, (role, text) in enumerate(said)]


def ids_of(chat_format: HFChatFormat, conversation: list[Message]) -> list[int]:
    return prompt_of(chat_format, conversation, {}).ids


@pytest.fixture
def folder(tmp_path: Path) -> Callable[..., Path]:
    """Makes a folder with a small BPE tokenizer and this template and these further files."""

    def make(template: Any = CHATML, *, config: dict[str, Any] | None = None, **files: Any) -> Path:
        from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=300, special_tokens=SPECIAL, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        )  # fmt: skip
        tokenizer.train_from_iterator(["hello there, hello world"] * 3, trainer)
        tokenizer.enable_truncation(4)
        tokenizer.enable_padding(length=9)
        tokenizer.save(str(tmp_path / "tokenizer.json"))
        base: dict[str, Any] = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": {"__type": "AddedToken", "content": "<s>", "special": True},
            "eos_token": "<|end|>",
        }
        if template is not None:
            base["chat_template"] = template
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(base | (config or {})))
        for name, value in files.items():
            text = value if isinstance(value, str) else json.dumps(value)
            (tmp_path / name.replace("__", ".")).write_text(text)
        return tmp_path

    return make


CONVERSATIONS = [
    messages(("user", "Add up [1, 2].")),
    messages(("system", 'be "brief" & <kind>'), ("user", "hello"), ("assistant", "return 3"), ("user", "é ☃ \n x")),
    messages(("user", "  spaces and lines \n\n")),
]


@pytest.mark.parametrize("conversation", CONVERSATIONS)
@pytest.mark.parametrize("which", ["tiny policy", "made here", "template file"])
def test_it_is_what_transformers_makes_of_the_same_folder(
    which: str, conversation: list[Message], folder: Callable[..., Path]
) -> None:
    from transformers import AutoTokenizer

    if which == "tiny policy":
        path = TINY_POLICY
    elif which == "made here":
        path = folder()
    else:
        path = folder("not this one", chat_template__jinja=CHATML)
    reference: Any = AutoTokenizer.from_pretrained(path, local_files_only=True)
    chat = [{"role": message.role, "content": message.content} for message in conversation]
    expected = reference.apply_chat_template(chat, add_generation_prompt=True, tokenize=True, return_dict=False)
    chat_format = HFChatFormat(path)
    chat_format.load()
    assert ids_of(chat_format, conversation) == expected
    assert chat_format.read(expected, ended=False).content == reference.decode(
        expected, skip_special_tokens=True, clean_up_tokenization_spaces=False
    )


def test_a_folder_without_tokenizer_json_is_read_by_transformers(
    folder: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    import transformers

    path = folder()
    with_file = ids_of(HFChatFormat(path), CONVERSATIONS[0])
    whole = transformers.AutoTokenizer.from_pretrained(path, local_files_only=True)
    (path / "tokenizer.json").unlink()
    asked: list[Path] = []

    def from_pretrained(where: Path, *, local_files_only: bool) -> Any:
        assert local_files_only
        asked.append(where)
        return whole

    monkeypatch.setattr(transformers.AutoTokenizer, "from_pretrained", from_pretrained)
    chat_format = HFChatFormat(path)
    assert ids_of(chat_format, CONVERSATIONS[0]) == with_file
    assert asked == [path]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50, deadline=None)
@given(text=st.text(max_size=30) | st.lists(st.sampled_from([*SPECIAL, "a", "\n", " "])).map("".join))
def test_text_comes_back_as_it_went_and_ends_no_message(text: str, made: HFChatFormat) -> None:
    ids = made.message_ids(Message("user", text, "seed", 0), "assistant")
    plain = made.message_ids(Message("user", "", "seed", 0), "assistant")
    begin, end = plain[:1], plain[1:]
    assert ids[:1] == begin
    assert ids[-len(end) :] == end
    assert made.read(ids[1 : -len(end)], ended=False).content == text
    assert [i for i in ids if i < len(SPECIAL)] == [i for i in plain if i < len(SPECIAL)]
    assert all(0 <= i < made.vocabulary for i in ids)


@pytest.fixture
def made(folder: Callable[..., Path]) -> HFChatFormat:
    return HFChatFormat(folder())


def test_the_ids_that_end_an_answer_come_from_every_file(folder: Callable[..., Path]) -> None:
    path = folder(config__json={"eos_token_id": 2}, generation_config__json={"eos_token_id": [3, 1]})
    assert HFChatFormat(path).stop_ids == (1, 2, 3)


@pytest.mark.parametrize(
    ("config", "size"), [({"vocab_size": 999}, 999), ({"text_config": {"vocab_size": 998}}, 998), ({}, None)]
)
def test_the_vocabulary_is_the_models(folder: Callable[..., Path], config: dict[str, Any], size: int | None) -> None:
    found = HFChatFormat(folder(config__json=config)).vocabulary
    assert found == size if size is not None else found > 256


def test_of_several_templates_the_default_is_taken(folder: Callable[..., Path]) -> None:
    named = [{"name": "tool_use", "template": "x"}, {"name": "default", "template": CHATML}]
    path = folder(named)
    ids = ids_of(HFChatFormat(path), CONVERSATIONS[0])
    assert ids == ids_of(HFChatFormat(folder(CHATML)), CONVERSATIONS[0])


@pytest.mark.parametrize("template", [None, [{"name": "tool_use", "template": "x"}]])
def test_a_tokenizer_without_a_chat_template_is_refused(folder: Callable[..., Path], template: Any) -> None:
    with pytest.raises(ConfigurationError, match="no chat template"):
        HFChatFormat(folder(template)).load()


@pytest.mark.parametrize("template", ["{% if %}", "{% for x in messages %}"])
def test_a_template_that_does_not_compile_is_refused(folder: Callable[..., Path], template: str) -> None:
    with pytest.raises(ConfigurationError):
        HFChatFormat(folder(template)).load()


@pytest.mark.parametrize(
    "template",
    [
        "{{ raise_exception('roles must alternate') }}",
        "{{ messages.append(1) }}",
        "{{ ''.__class__.__mro__ }}{{ messages.__class__.__base__.__subclasses__() }}",
        "{{ messages[0].content + 1 }}",
    ],
)
def test_a_template_that_refuses_or_reaches_out_is_a_configuration_error(
    folder: Callable[..., Path], template: str
) -> None:
    with pytest.raises(ConfigurationError):
        HFChatFormat(folder(template)).load()


def test_broken_or_missing_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="no folder"):
        HFChatFormat(tmp_path / "none").load()
    (tmp_path / "tokenizer_config.json").write_text("{")
    with pytest.raises(ConfigurationError, match="cannot be read"):
        HFChatFormat(tmp_path).load()


def test_a_missing_library_is_named_with_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(ImportError, match="pip install"):
        HFChatFormat(TINY_POLICY).load()


def test_it_pickles_as_its_path_before_and_after_loading() -> None:
    chat_format = HFChatFormat(TINY_POLICY)
    assert isinstance(chat_format, ChatFormat)
    chat_format.load()
    copy = pickle.loads(pickle.dumps(chat_format))
    assert copy.path == TINY_POLICY
    assert ids_of(copy, CONVERSATIONS[0]) == ids_of(chat_format, CONVERSATIONS[0])
