"""Records what `transformers` makes of prompts with the files that published tokenizers of CLIP consist of."""

import json
import shutil
import tempfile
from pathlib import Path

from transformers import CLIPTokenizer

from shared import PROMPTS, write_json
from stable_diffusion import tokenizer

ADDED = PROMPTS + ["a photo of <cat-toy> in the snow", "<CAT-TOY><cat-toy>!sks person, sks", "the sksperson ! wow!", "[new] x"]
END, BEGIN = "<|endoftext|>", "<|startoftext|>"
# As an older `transformers` wrote it.
OLD = {"lstrip": False, "normalized": True, "rstrip": False, "single_word": False}


def old(name):
    return {"content": name, **OLD}


def clip_tokenizers(out):
    recorded = []
    with tempfile.TemporaryDirectory() as made:
        base = Path(made) / "base"
        _, size = tokenizer(base, END, str)
        toy = {"content": "<cat-toy>", "lstrip": False, "normalized": True, "rstrip": False, "single_word": False, "special": False}
        sks = {"content": "sks", "lstrip": True, "normalized": False, "rstrip": True, "single_word": True, "special": True}
        plain = {"tokenizer_class": "CLIPTokenizer", "model_max_length": 77}
        named = {"bos_token": old(BEGIN), "eos_token": old(END), "unk_token": old(END)}
        typed = {role: {"__type": "AddedToken", **token} for role, token in named.items()}
        cases = [
            # Stable Diffusion 1.5, and 2.1 with its padding.
            ({**plain, **typed, "pad_token": END}, {"special_tokens_map.json": {**named, "pad_token": END}}),
            ({**plain, **typed, "pad_token": END}, {"special_tokens_map.json": {**named, "pad_token": "!"}}),
            ({**plain, "pad_token": "!"}, {"special_tokens_map.json": {"pad_token": {**old("!"), "normalized": False}}}),
            # Textual inversion and DreamBooth.
            ({**plain, "pad_token": END}, {"added_tokens.json": {"<cat-toy>": size, "sks": size + 1}}),
            ({**plain, "pad_token": "[new]"}, {"added_tokens.json": {"[new]": size}, "special_tokens_map.json": {"pad_token": "[new]"}}),
            ({**plain, "pad_token": END, "added_tokens_decoder": {
                str(size - 2): {**toy, "content": BEGIN, "special": True},
                str(size - 1): {**toy, "content": END, "special": True}, str(size): toy, str(size + 1): sks,
            }}, {"special_tokens_map.json": {"pad_token": "!"}}),
        ]
        for number, (config, extra) in enumerate(cases):
            folder = Path(made) / str(number)
            shutil.copytree(base, folder)
            files = {"tokenizer_config.json": config, **extra}
            for name, content in files.items():
                (folder / name).write_text(json.dumps(content))
            words = CLIPTokenizer.from_pretrained(folder)
            ids = words(ADDED, padding="max_length", max_length=77, truncation=True).input_ids
            recorded.append({"files": files, "ids": ids})
        pieces = {name: (base / name).read_text() for name in ["vocab.json", "merges.txt"]}
    write_json(out / "clip_tokenizers.json", {"pieces": pieces, "prompts": ADDED, "cases": recorded})
