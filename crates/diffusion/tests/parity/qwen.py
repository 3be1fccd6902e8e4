"""The text encoder Qwen 3 and its tokenizer, which several families share."""

import json

import torch
from tokenizers import Regex, pre_tokenizers
from transformers import Qwen2Tokenizer, Qwen3Config, Qwen3ForCausalLM
from transformers.models.qwen2.tokenization_qwen2 import PRETOKENIZE_REGEX

from shared import PROMPTS, TEXT, learn_merges

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
ADDED = ["<think>", "</think>"]
# Gives for one message of a user what the published template gives.
TEMPLATE = """{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}"""


def qwen_tokenizer(folder, whole):
    """A tokenizer in one file, or in the two of older folders."""
    split = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(PRETOKENIZE_REGEX), behavior="isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ])
    merges = learn_merges([list(word) for word, _ in split.pre_tokenize_str(TEXT)], 100)
    words = sorted(pre_tokenizers.ByteLevel.alphabet()) + ["".join(merge) for merge in merges]
    vocabulary = {word: index for index, word in enumerate(dict.fromkeys(words))}
    folder.mkdir(parents=True)
    (folder / "vocab.json").write_text(json.dumps(vocabulary, ensure_ascii=False))
    (folder / "merges.txt").write_text("#version: 0.2\n" + "\n".join(" ".join(merge) for merge in merges) + "\n")
    added = {
        str(len(vocabulary) + index): {
            "content": name, "lstrip": False, "normalized": False, "rstrip": False, "single_word": False,
            "special": name in SPECIAL,
        } for index, name in enumerate(SPECIAL + ADDED)
    }
    config = {
        "add_prefix_space": False, "added_tokens_decoder": added, "chat_template": TEMPLATE,
        "eos_token": "<|im_end|>", "model_max_length": 131072, "pad_token": "<|endoftext|>",
        "tokenizer_class": "Qwen2Tokenizer", "unk_token": None,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")
    tokenizer = Qwen2Tokenizer.from_pretrained(folder)
    if whole:
        tokenizer.backend_tokenizer.save(str(folder / "tokenizer.json"))
        (folder / "vocab.json").unlink()
        (folder / "merges.txt").unlink()
        del config["added_tokens_decoder"], config["chat_template"]
        (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")
        (folder / "chat_template.jinja").write_text(TEMPLATE)
        tokenizer = Qwen2Tokenizer.from_pretrained(folder)
    return tokenizer, len(vocabulary) + len(added)


def qwen(vocabulary, width, layers):
    config = Qwen3Config(
        vocab_size=vocabulary, hidden_size=width, intermediate_size=width * 2, num_hidden_layers=layers,
        num_attention_heads=4, num_key_value_heads=2, head_dim=8, max_position_embeddings=1024,
        rope_parameters={"rope_type": "default", "rope_theta": 1000000.0}, tie_word_embeddings=True,
        attn_implementation="eager",
    )
    return Qwen3ForCausalLM(config)


def record_tokens(tokenizer, enable_thinking):
    """The tokens of prompts, without padding."""
    recorded = []
    for prompt in [*PROMPTS, "<|im_end|> in the middle <think> of <|endoftext|>", "\n\n lines \r\n and 12345 digits  "]:
        text = tokenizer.apply_chat_template(
            [{"role": "user", "content": prompt}], tokenize=False, add_generation_prompt=True,
            enable_thinking=enable_thinking,
        )
        inputs = tokenizer(text, return_tensors="pt", padding="max_length", truncation=True, max_length=512)
        ids, mask = inputs["input_ids"][0], inputs["attention_mask"][0]
        length = int(mask.sum())
        assert len(ids) == 512 and not mask[length:].any()
        recorded.append({"prompt": prompt, "ids": ids[:length].tolist()})
    return recorded
