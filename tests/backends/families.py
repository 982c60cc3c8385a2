"""Small model folders in the shapes of well-known families: templates of our own and tokenizers trained here.

Each does what the family's template does to conversations: how it begins, what it writes around a message, what it
refuses, moves, strips and trims.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

CORPUS = [
    "You are an agent. Answer with Python code and return the result.",
    "def add(a, b):\n    return a + b\n\nprint(add(1, 2))\n",
    "hello there, hello world; the values are [1, 2, 3] and {'key': \"value\"}",
    "user assistant system think model Today Date: 2024 INST USER ASSISTANT",
    "é ☃ 你好 naïve café",
] * 3

CHATML = """
{%- for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>' + '\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"""

# A system prompt of its own where the conversation has none.
QWEN25 = """
{%- if messages[0].role != 'system' %}{{ '<|im_start|>system\nBe helpful.<|im_end|>\n' }}{% endif %}
{%- for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>' + '\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"""

# Reasoning is taken out of what was said before the last question and written anew, empty, after it.
QWEN3 = """
{%- set ns = namespace(last=0) %}
{%- for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}
{%- for m in messages %}
  {%- if m.role == 'assistant' %}
    {%- set said = m.content %}{% set thought = '' %}
    {%- if '</think>' in said %}
      {%- set thought = said.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n') %}
      {%- set said = said.split('</think>')[-1].lstrip('\n') %}
    {%- endif %}
    {%- if loop.index0 > ns.last %}
      {{- '<|im_start|>assistant\n<think>\n' + thought + '\n</think>\n\n' + said + '<|im_end|>\n' }}
    {%- else %}
      {{- '<|im_start|>assistant\n' + said + '<|im_end|>\n' }}
    {%- endif %}
  {%- else %}
    {{- '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}
  {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
  {{- '<|im_start|>assistant\n' }}
  {%- if enable_thinking is defined and enable_thinking is false %}{{ '<think>\n\n</think>\n\n' }}{% endif %}
{%- endif %}"""

# The prompt opens the reasoning; what is said is cut at its end.
R1 = """
{{- bos_token }}
{%- for m in messages %}{% if m.role == 'system' %}{{ m.content }}{% endif %}{% endfor %}
{%- for m in messages %}
  {%- if m.role == 'user' %}{{ '<|User|>' + m.content }}{% endif %}
  {%- if m.role == 'assistant' %}
    {%- set said = m.content.split('</think>')[-1] if '</think>' in m.content else m.content %}
    {{- '<|Assistant|>' + said + '<|end_of_sentence|>' }}
  {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|Assistant|><think>\n' }}{% endif %}"""

# The date is written, and contents are trimmed.
LLAMA3 = """
{{- bos_token }}
{%- if messages[0].role == 'system' %}
  {%- set system = messages[0].content | trim %}{% set rest = messages[1:] %}
{%- else %}{% set system = '' %}{% set rest = messages %}{% endif %}
{{- '<|start_header_id|>system<|end_header_id|>\n\nToday Date: ' + strftime_now('%d %b %Y') + '\n\n' + system }}
{{- '<|eot_id|>' }}
{%- for m in rest %}
  {{- '<|start_header_id|>' + m.role + '<|end_header_id|>\n\n' + m.content | trim + '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"""

# No system message, strictly taking turns, another name for the assistant.
GEMMA = """
{{- bos_token }}
{%- if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}
{%- for m in messages %}
  {%- if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('Roles must alternate') }}{% endif %}
  {{- '<start_of_turn>' + ('model' if m.role == 'assistant' else m.role) + '\n' + m.content | trim }}
  {{- '<end_of_turn>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"""

# The system's text goes before the first question, within its turn.
LLAMA2 = """
{%- if messages[0].role == 'system' %}
  {%- set system = '<<SYS>>\n' + messages[0].content + '\n<</SYS>>\n\n' %}{% set rest = messages[1:] %}
{%- else %}{% set system = '' %}{% set rest = messages %}{% endif %}
{%- for m in rest %}
  {%- if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('Roles must alternate') }}{% endif %}
  {%- if m.role == 'user' %}
    {{- bos_token + '[INST] ' + (system if loop.first else '') + m.content + ' [/INST]' }}
  {%- else %}{{ ' ' + m.content + ' ' + eos_token }}{% endif %}
{%- endfor %}"""

# The system's text goes before the last question.
MISTRAL = """
{{- bos_token }}
{%- if messages[0].role == 'system' %}
  {%- set system = messages[0].content + '\n\n' %}{% set rest = messages[1:] %}
{%- else %}{% set system = '' %}{% set rest = messages %}{% endif %}
{%- for m in rest %}
  {%- if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('Roles must alternate') }}{% endif %}
  {%- if m.role == 'user' %}{{ '[INST]' + (system if loop.last else '') + m.content + '[/INST]' }}
  {%- else %}{{ m.content + eos_token }}{% endif %}
{%- endfor %}"""

# Special tokens take the whitespace after them away.
PHI = """
{%- for m in messages %}{{ '<|' + m.role + '|>\n' + m.content + '<|end|>\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}"""

# Role names are ordinary text.
ZEPHYR = """
{%- for m in messages %}{{ '<|' + m.role + '|>\n' + m.content + eos_token + '\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}"""

VICUNA = """
{%- for m in messages %}
  {%- if m.role == 'system' %}{{ m.content + ' ' }}
  {%- elif m.role == 'user' %}{{ 'USER: ' + m.content + ' ' }}
  {%- else %}{{ 'ASSISTANT: ' + m.content + eos_token }}{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ 'ASSISTANT:' }}{% endif %}"""


@dataclass(frozen=True)
class Family:
    """tokens: added ones; those of `plain` are not special. pieces: whether its tokenizer is of sentence pieces."""

    name: str
    template: str
    tokens: tuple[str, ...]
    eos: str
    bos: str | None = None
    plain: tuple[str, ...] = ()
    pieces: bool = False
    strips: bool = False
    more: dict[str, Any] = field(default_factory=dict)

    def write(self, folder: Path) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        tokenizer = _sentence_pieces() if self.pieces else _bytes()
        special = [token for token in self.tokens if token not in self.plain]
        tokenizer.add_special_tokens([AddedToken(t, rstrip=self.strips, normalized=False) for t in special])
        tokenizer.add_tokens([AddedToken(token, normalized=False) for token in self.plain])
        tokenizer.save(str(folder / "tokenizer.json"))
        config: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": self.eos}
        config |= {"clean_up_tokenization_spaces": False, "chat_template": self.template}
        if self.bos is not None:
            config["bos_token"] = self.bos
        (folder / "tokenizer_config.json").write_text(json.dumps(config | self.more))
        return folder


def _bytes() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(
        CORPUS, trainers.BpeTrainer(vocab_size=420, initial_alphabet=alphabet, show_progress=False)
    )
    return tokenizer


def _sentence_pieces() -> Tokenizer:
    """As Llama 2's and Mistral's: the beginning of a text is that of a word, what is not known falls into bytes."""
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence([])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    fallback = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256))]
    trainer = trainers.BpeTrainer(vocab_size=700, special_tokens=fallback, show_progress=False)
    tokenizer.train_from_iterator([line.replace("☃", "") for line in CORPUS], trainer)
    data = json.loads(tokenizer.to_str())
    data["added_tokens"] = [token for token in data["added_tokens"] if token["content"] == "<unk>"]
    made: Tokenizer = Tokenizer.from_str(json.dumps(data))
    return made


_IM = ("<|im_start|>", "<|im_end|>", "<|endoftext|>")
_HEADERS = ("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")
_R1 = ("<|begin|>", "<|User|>", "<|Assistant|>", "<|end_of_sentence|>", "<think>", "</think>")
_THINK = ("<think>", "</think>")

FAMILIES = {
    family.name: family
    for family in (
        Family("chatml", CHATML, _IM, "<|im_end|>"),
        Family("qwen2.5", QWEN25, _IM, "<|im_end|>"),
        Family("qwen3", QWEN3, (*_IM, *_THINK), "<|im_end|>", plain=_THINK),
        Family("qwen3, tags of several tokens", QWEN3, _IM, "<|im_end|>"),
        Family("llama3", LLAMA3, _HEADERS, "<|eot_id|>", "<|begin_of_text|>"),
        Family("gemma", GEMMA, ("<bos>", "<start_of_turn>", "<end_of_turn>", "<eos>"), "<eos>", "<bos>"),
        Family("llama2", LLAMA2, ("<s>", "</s>"), "</s>", "<s>", pieces=True),
        Family("mistral", MISTRAL, ("<s>", "</s>", "[INST]", "[/INST]"), "</s>", "<s>", pieces=True),
        Family("r1", R1, _R1, "<|end_of_sentence|>", "<|begin|>", plain=_THINK),
        Family("phi", PHI, ("<|system|>", "<|user|>", "<|assistant|>", "<|end|>", "<|endoftext|>"), "<|endoftext|>",
               strips=True, pieces=True),
        Family("zephyr", ZEPHYR, ("<s>", "</s>"), "</s>", "<s>", pieces=True),
        Family("vicuna", VICUNA, ("<s>", "</s>"), "</s>", "<s>", pieces=True),
    )
}  # fmt: skip
