"""Prompts go on from the ids that were sampled, whatever their text would encode to."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from jaz_actors.backends.chat_format import HFChatFormat
from jaz_actors.backends.conditioning import prompt_of
from jaz_actors.messages import Completion, Message, SampledTokens, Span
from jaz_actors.stamps import Stamps
from tests.backends.families import CHATML
from tests.backends.real_tokenizers import REAL

LETTERS = "abcd"
SPECIAL = ("<|im_start|>", "<|im_end|>")


@st.composite
def adversaries(draw: st.DrawFn) -> Tokenizer:
    """Byte-pair encoding with merges in any order, and with tokens that no text encodes to."""
    pieces, merges = list(LETTERS), []
    for _ in range(draw(st.integers(0, 6))):
        one, other = draw(st.sampled_from(pieces)), draw(st.sampled_from(pieces))
        if one + other not in pieces:
            merges.append((one, other))
            pieces.append(one + other)
    unreachable = draw(st.lists(st.text(LETTERS, min_size=5, max_size=8), min_size=1, max_size=6, unique=True))
    words = [*sorted(pre_tokenizers.ByteLevel.alphabet()), *pieces[len(LETTERS) :]]
    words += [word for word in unreachable if word not in words]
    tokenizer = Tokenizer(models.BPE(vocab={word: n for n, word in enumerate(words)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, normalized=False) for token in SPECIAL])
    tokenizer.add_tokens([AddedToken(token, normalized=False) for token in ("<think>", "</think>")])
    return tokenizer


def written(tokenizer: Tokenizer, folder: Path) -> Path:
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>", "chat_template": CHATML}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def converse(chat_format: HFChatFormat, answers: Sequence[tuple[list[int], bool]], *, keep: bool) -> list[list[int]]:
    """An invocation's prompts: after each answer, what it said is shown again, and a question comes."""
    messages, stamps, prompts = [Message("user", "begin", "seed", 0)], Stamps(), []
    for turn, (ids, ended) in enumerate(answers):
        prompt = prompt_of(chat_format, messages, stamps.known)
        prompts.append(prompt.ids)
        output = [*ids, chat_format.stop_ids[0]] if ended else ids
        reply = chat_format.read(output, ended=ended)
        tokens = SampledTokens(
            prompt.ids,
            output,
            [0.0] * len(output),
            stamps=prompt.stamps,
            suffix_ids=chat_format.reply_end_ids(ended=ended),
            reasoning=None if reply.reasoning is None else Span(*reply.reasoning),
            kept=keep or reply.reasoning is None,
        )
        stamps.sent(messages, tokens)
        answer = Completion(reply.content, tokens=tokens)
        said = Message("assistant", reply.content, "llm", 2 * turn + 1, iteration=turn)
        stamps.said(said, answer, answer)
        messages += [said, Message("user", "so", "repl", 2 * turn + 2)]
    prompts.append(prompt_of(chat_format, messages, stamps.known).ids)
    return prompts


def check(chat_format: HFChatFormat, answers: Sequence[tuple[list[int], bool]]) -> None:
    prompts = converse(chat_format, answers, keep=True)
    for turn, (ids, ended) in enumerate(answers):
        whole = [*prompts[turn], *ids, *([chat_format.stop_ids[0]] if ended else [])]
        assert prompts[turn + 1][: len(whole)] == whole


@given(tokenizer=adversaries(), data=st.data())
@settings(max_examples=80, deadline=None)
def test_no_answer_of_an_adversary_is_encoded_again(tokenizer: Tokenizer, data: st.DataObject) -> None:
    size = tokenizer.get_vocab_size(with_added_tokens=False)
    unreachable = [i for i in range(256, size) if tokenizer.encode(tokenizer.decode([i])).ids != [i]]
    some = st.integers(0, size - 1) | st.sampled_from(unreachable) | st.sampled_from([size + 2, size + 3])
    answer = st.tuples(st.lists(some, max_size=8), st.booleans())
    answers = [([unreachable[0]], True), *data.draw(st.lists(answer, max_size=4))]
    with tempfile.TemporaryDirectory() as folder:
        chat_format = HFChatFormat(written(tokenizer, Path(folder)))
        chat_format.load()
        encoded = chat_format.message_ids(Message("assistant", tokenizer.decode([unreachable[0]]), "llm", 1), "user")
        assert unreachable[0] not in encoded, "its text encodes to something else"
        check(chat_format, answers)


@given(tokenizer=adversaries(), data=st.data())
@settings(max_examples=40, deadline=None)
def test_an_answer_whose_reasoning_is_stripped_is_its_visible_text(tokenizer: Tokenizer, data: st.DataObject) -> None:
    size = tokenizer.get_vocab_size(with_added_tokens=False)
    opens, closes = size + 2, size + 3
    ids = st.lists(st.integers(0, size - 1), max_size=6)
    answers = [([opens, *data.draw(ids), closes, *data.draw(ids)], True) for _ in range(3)]
    with tempfile.TemporaryDirectory() as folder:
        chat_format = HFChatFormat(written(tokenizer, Path(folder)))
        chat_format.load()
        prompts = converse(chat_format, answers, keep=False)
        visible = [chat_format.read([*ids, chat_format.stop_ids[0]], ended=True).content for ids, _ in answers]
        said = [Message("user", "begin", "seed", 0)]
        for turn, text in enumerate(visible):
            said += [Message("assistant", text, "llm", 2 * turn + 1), Message("user", "so", "repl", 2 * turn + 2)]
        assert prompts[-1] == prompt_of(chat_format, said, {}).ids
        assert opens not in prompts[-1]
        assert closes not in prompts[-1]


@pytest.fixture(scope="module")
def loaded(real_folder: Callable[[str], Path]) -> Callable[[str], HFChatFormat]:
    made: dict[str, HFChatFormat] = {}

    def load(name: str) -> HFChatFormat:
        if name not in made:
            made[name] = HFChatFormat(real_folder(name), own_turns=True)
            made[name].load()
        return made[name]

    return load


@pytest.mark.parametrize("name", REAL)
@given(data=st.data())
@settings(max_examples=30, deadline=None)
def test_no_answer_of_a_real_family_is_encoded_again(
    name: str, data: st.DataObject, loaded: Callable[[str], HFChatFormat]
) -> None:
    chat_format = loaded(name)
    assert chat_format._loaded is not None
    added = {token.id for token in chat_format._loaded.text.added.values()}
    ids = st.integers(0, chat_format.vocabulary - 1).filter(lambda i: i not in added)
    answer = st.tuples(st.lists(ids, max_size=12), st.booleans())
    check(chat_format, data.draw(st.lists(answer, min_size=1, max_size=4)))
