"""Tokenizers of every kind: those of the package mistral-common, and small ones that the `tokenizers` library makes."""

import json
import shutil
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

import mistral_common
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast

PUBLISHED = Path(mistral_common.__file__).parent / "data"
LLAMA = {
    "tokenizer_class": "LlamaTokenizer",
    "bos_token": "<s>",
    "eos_token": "</s>",
    "unk_token": "<unk>",
}
TEXTS = [
    "the film was great, and so was the end of it\n",
    "def f(x):\n    y = x * x\n    return y\n\n",
    "naïve café 東京 and 映画",
] * 20
CHAT = (
    "{{ bos_token }}{% for m in messages %}[{{ m['role'] }}]{{ m['content'] }}{% if m['role'] == 'assistant' %}"
    "{{ eos_token }}{% endif %}{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}"
)


def _published(file: str, name: str, config: dict[str, str]) -> PreTrainedTokenizerBase:
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(PUBLISHED / file, Path(folder, name))
        Path(folder, "tokenizer_config.json").write_text(json.dumps(config))
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(folder)
        return tokenizer


def sentencepiece() -> PreTrainedTokenizerBase:
    """Mistral 7B's: Metaspace, byte fallback, 32,000 tokens."""
    return _published("tokenizer.model.v1", "tokenizer.model", LLAMA)


def tekken() -> PreTrainedTokenizerBase:
    """Mistral NeMo's: byte-level BPE with 131,072 tokens, 1,000 of them special."""
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>"}
    return _published("tekken_240911.json", "tekken.json", config)


def prefixed_bpe(*, ends: bool = False) -> PreTrainedTokenizerBase:
    """As Llama 2's: a space before each text, by a normaliser, byte fallback, a BOS token, and with `ends` an EOS
    token."""
    special = ["<unk>", "<s>", "</s>"]
    model = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    model.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    model.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    byte_tokens = [f"<0x{byte:02X}>" for byte in range(256)]
    trainer = trainers.BpeTrainer(vocab_size=500, special_tokens=special + byte_tokens, show_progress=False)
    model.train_from_iterator(TEXTS[::3] + TEXTS[1::3], trainer)
    made = json.loads(model.to_str())
    made["added_tokens"] = [token for token in made["added_tokens"] if token["content"] in special]
    model = Tokenizer.from_str(json.dumps(made))
    single = "<s> $A </s>" if ends else "<s> $A"
    model.post_processor = processors.TemplateProcessing(
        single=single, special_tokens=[("<s>", 1), ("</s>", 2)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=model, bos_token="<s>", eos_token="</s>", unk_token="<unk>", chat_template=CHAT
    )


def unigram() -> PreTrainedTokenizerBase:
    """As T5's: Metaspace before and behind a unigram model."""
    model = Tokenizer(models.Unigram())
    model.pre_tokenizer = pre_tokenizers.Metaspace()
    model.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=200, special_tokens=["<unk>", "</s>"], unk_token="<unk>", show_progress=False
    )
    model.train_from_iterator(TEXTS, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=model, eos_token="</s>", unk_token="<unk>")


def byte_level() -> PreTrainedTokenizerBase:
    """As GPT-2's, with tokens that were added: special ones of a template, and one that is text."""
    model = Tokenizer(models.BPE())
    model.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    model.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=500,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    model.train_from_iterator(TEXTS, trainer)
    made = PreTrainedTokenizerFast(tokenizer_object=model, eos_token="<|endoftext|>")
    made.add_special_tokens({"additional_special_tokens": ["<|im_start|>", "<|im_end|>"]})
    made.add_tokens(["<think>"])
    return made


def wordpiece() -> PreTrainedTokenizerBase:
    """As BERT's, which also asks Transformers to take spaces out of decoded text."""
    model = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    model.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    model.decoder = decoders.WordPiece(cleanup=False)
    trainer = trainers.WordPieceTrainer(
        vocab_size=200, special_tokens=["[UNK]", "[SEP]"], show_progress=False
    )
    model.train_from_iterator(TEXTS, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=model, eos_token="[SEP]", unk_token="[UNK]", clean_up_tokenization_spaces=True
    )


def suffixed_bpe() -> PreTrainedTokenizerBase:
    """As GPT-1's, whose tokens mark the end of a word."""
    model = Tokenizer(models.BPE(unk_token="<unk>", end_of_word_suffix="</w>"))
    model.pre_tokenizer = pre_tokenizers.Whitespace()
    model.decoder = decoders.BPEDecoder(suffix="</w>")
    trainer = trainers.BpeTrainer(
        vocab_size=200, special_tokens=["<unk>", "</s>"], end_of_word_suffix="</w>", show_progress=False
    )
    model.train_from_iterator(TEXTS, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=model, eos_token="</s>", unk_token="<unk>")


KINDS: dict[str, Callable[[], PreTrainedTokenizerBase]] = {
    function.__name__: cache(function)
    for function in (sentencepiece, tekken, prefixed_bpe, unigram, byte_level, wordpiece, suffixed_bpe)
}
