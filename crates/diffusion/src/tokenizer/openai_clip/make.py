"""Writes merges.txt.gz beside this script: the merges of CLIP's vocabulary, by OpenAI, from a wheel of OpenCLIP.

    pip download --no-deps open_clip_torch==3.3.0 && python make.py open_clip_torch-3.3.0-py3-none-any.whl

The file in the wheel is the one of https://github.com/openai/CLIP, which lists more merges than CLIP uses.
"""

import gzip
import hashlib
import pathlib
import sys
import zipfile

SOURCE = "open_clip/bpe_simple_vocab_16e6.txt.gz"
SHA256 = "924691ac288e54409236115652ad4aa250f48203de50a9e4722a6ecd48d6804a"
# A word for each byte, alone and at the end of a text, and two marks: the merges make all other words.
COUNT = 49_408 - 2 * 256 - 2

if __name__ == "__main__":
    packed = zipfile.ZipFile(sys.argv[1]).read(SOURCE)
    if hashlib.sha256(packed).hexdigest() != SHA256:
        sys.exit(f"{SOURCE} is not the file that this script knows")
    merges = gzip.decompress(packed).decode().split("\n")[1 : COUNT + 1]
    text = "".join(merge + "\n" for merge in merges).encode()
    (pathlib.Path(__file__).parent / "merges.txt.gz").write_bytes(gzip.compress(text, 9, mtime=0))
