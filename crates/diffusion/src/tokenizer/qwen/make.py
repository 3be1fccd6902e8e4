"""Writes merges.txt.gz beside this script: the merges of Qwen's vocabulary, by Alibaba Cloud, from a wheel of DashScope.

    pip download --no-deps dashscope==2.0.2 && python make.py dashscope-2.0.2-py3-none-any.whl

The file in the wheel lists words by their numbers. A word is the merge of the two pieces that the words before it leave,
so the merges tell the vocabulary, too. The result is the `merges.txt` of Qwen 2, 2.5 and 3.
"""

import base64
import gzip
import hashlib
import pathlib
import sys
import zipfile

SOURCE = "dashscope/resources/qwen.tiktoken"
SHA256 = "b2b1b8dfb5cc5f024bafc373121c6aba3f66f9a5a0269e243470a1de16a33186"


def symbols():
    """The characters that stand for bytes: those that can be seen for themselves, then others for the rest."""
    seen = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    hidden = [byte for byte in range(256) if byte not in seen]
    return {byte: chr(byte) for byte in seen} | {byte: chr(256 + at) for at, byte in enumerate(hidden)}


def pieces(word, numbers):
    """The two pieces of a word."""
    found = [word[at : at + 1] for at in range(len(word))]
    while len(found) > 2:
        pairs = [numbers.get(one + other, len(numbers)) for one, other in zip(found, found[1:])]
        at = pairs.index(min(pairs))
        found[at : at + 2] = [found[at] + found[at + 1]]
    return found


if __name__ == "__main__":
    listed = zipfile.ZipFile(sys.argv[1]).read(SOURCE)
    if hashlib.sha256(listed).hexdigest() != SHA256:
        sys.exit(f"{SOURCE} is not the file that this script knows")
    lines = [line.split() for line in listed.splitlines()]
    numbers = {base64.b64decode(word): int(number) for word, number in lines}
    letters = symbols()
    merges = [pieces(word, numbers) for word in sorted(numbers, key=numbers.get) if len(word) > 1]
    text = "".join(" ".join("".join(letters[byte] for byte in piece) for piece in merge) + "\n" for merge in merges)
    (pathlib.Path(__file__).parent / "merges.txt.gz").write_bytes(gzip.compress(text.encode(), 9, mtime=0))
