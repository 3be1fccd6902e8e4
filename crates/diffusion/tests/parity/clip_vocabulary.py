"""Records the tokens that the vocabulary of CLIP gives, which comes with the program."""

import gzip
import json
import tempfile
from pathlib import Path

import ftfy
from open_clip.tokenizer import SimpleTokenizer
from transformers import CLIPTokenizer

from shared import PROMPTS, write_json

HERE = Path(__file__).parent
MERGES = HERE.parents[1] / "src" / "tokenizer" / "openai_clip" / "merges.txt.gz"
BEGIN, END = "<|startoftext|>", "<|endoftext|>"
MORE = PROMPTS + [
    "score_9, score_8_up, masterpiece, 1girl, solo, cowboy shot, (detailed:1.2)",
    "Ein Fuchs im Schnee, Gemälde; уличная фотография, المدينة القديمة, हिन्दी, 한국어 풍경",
    "f/2.8 85mm 8K — “quoted” … don't you're I'M 'S",
    "wow! !!! a!b ! !",
    "½ ² ① Ⅷ ٣ 日本2024年",
    "\ud7ff\ue000\ufffd \u0001\u007f",
]


def clip(padding):
    """The tokenizer as the folders of Stable Diffusion describe it, with OpenCLIP's numbers of words."""
    numbers = dict(SimpleTokenizer().encoder)
    numbers[BEGIN] = numbers.pop("<start_of_text>")
    numbers[END] = numbers.pop("<end_of_text>")
    special = lambda name: {
        "__type": "AddedToken", "content": name, "lstrip": False, "normalized": True, "rstrip": False,
        "single_word": False,
    }
    config = {
        "tokenizer_class": "CLIPTokenizer", "model_max_length": 77, "pad_token": padding, "bos_token": special(BEGIN),
        "eos_token": special(END), "unk_token": special(END),
    }
    with tempfile.TemporaryDirectory() as folder:
        write = lambda name, text: (Path(folder) / name).write_text(text)
        write("vocab.json", json.dumps(numbers))
        write("merges.txt", "#version: 0.2\n" + gzip.decompress(MERGES.read_bytes()).decode())
        write("tokenizer_config.json", json.dumps(config))
        return CLIPTokenizer.from_pretrained(folder)


def clip_vocabulary(out):
    cases = []
    for padding in [END, "!"]:
        words = clip(padding)
        ids = words(MORE, padding="max_length", max_length=77, truncation=True).input_ids
        prompts = [{"prompt": text, "ids": list(row)} for text, row in zip(MORE, ids)]
        cases.append({"padding": padding, "prompts": prompts})
    # OpenCLIP's own code gives the same where it leaves the text as it is.
    plain, same = SimpleTokenizer(), 0
    for case in cases[0]["prompts"]:
        text = case["prompt"]
        if "<|" not in text and ftfy.fix_text(text) == text:
            ids = [49406, *plain.encode(text)[:75], 49407]
            assert ids == case["ids"][: len(ids)], text
            same += 1
    assert same > 10, same
    write_json(out / "clip_vocabulary.json", cases)
