"""Shared by the makers of all families: random weights, tokenizers, and the recording of numbers."""

import json
import math
import shutil

import numpy
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

PROMPTS = [
    "",
    "a lighthouse in a storm, oil painting",
    "A LIGHTHOUSE,   with\tstrange \n\n white space   ",
    "it's 1984: they'll say we've 'quoted' it, i'd'nt",
    "naïve café, Ωmega, ﬁne ligatures, e\u0301 decomposed",
    "日本語の風景画、夕焼け",
    "🦊🏔️ 👩‍🚀 emoji",
    "<|endoftext|> in the middle <|startoftext|>",
    "<|ENDOFTEXT|> shouted",
    "a_b-c.d/e (f:1.3) [g] {h} \\i *** !!! ???",
    "word " * 100,
    "x" * 300,
    "\u00a0no-break\u2003em\u200bzero\u0007bell",
    "İstanbul ẞTRASSE ǅ",
]
TEXT = """a painting of a lighthouse in the storm on the coast, with the waves and the wind
an oil painting of the sea, a watercolour of a fox in the snow, a photo of an astronaut riding a horse
the house on the hill, the light of the evening, they say it is the best of all worlds, words and pictures
"""


def picture(width, height):
    """A picture that the tests make by the same formula."""
    y, x = numpy.mgrid[0:height, 0:width]
    planes = numpy.stack([x * 3 + y, x + y * 2, x * y // 16], axis=-1)
    return Image.fromarray(abs(planes % 510 - 255).astype(numpy.uint8))


def mask(width, height):
    """A mask that the tests make by the same formula."""
    y, x = numpy.mgrid[0:height, 0:width]
    return Image.fromarray(((x * 53 + y * 31) % 256).astype(numpy.uint8))


def numbers(tensor):
    """At most 256 numbers of a tensor, evenly spread, and two sums over all of them."""
    flat = tensor.detach().to(torch.float64).flatten()
    stride = max(1, math.ceil(len(flat) / 256)) | 1
    short = lambda x: float(f"{x:.8g}")
    return {
        "length": len(flat),
        "stride": stride,
        "numbers": [short(x) for x in flat[::stride].tolist()],
        "mean": short(flat.mean().item()),
        "square": short((flat**2).mean().item()),
    }


def write_json(path, value):
    path.write_text(json.dumps(value, ensure_ascii=False, separators=(",", ":")).replace("},", "},\n") + "\n")


def empty(folder):
    shutil.rmtree(folder, ignore_errors=True)
    return folder


def randomise(model, seed):
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in sorted(model.named_parameters()):
        noise = torch.randn(parameter.shape, generator=generator)
        if parameter.dim() > 1:
            scale = 1.0 if "embedding" in name and "time" not in name else (parameter[0].numel()) ** -0.5
            parameter.data = noise * scale
        elif "norm" in name and name.endswith("weight"):
            parameter.data = 1 + 0.2 * noise
        else:
            parameter.data = 0.1 * noise
    return model.eval()


def rounded(model, dtype):
    """The model with weights that the type can hold, still in 32 bits."""
    for parameter in model.parameters():
        parameter.data = parameter.data.to(dtype).to(torch.float32)
    return model


def learn_merges(words, count):
    """The most frequent pairs of neighbours, one after the other. The library's own trainer breaks ties at random."""
    merges = []
    for _ in range(count):
        pairs = {}
        for word in words:
            for pair in zip(word, word[1:]):
                pairs[pair] = pairs.get(pair, 0) + 1
        best = max(pairs, key=lambda pair: (pairs[pair], pair))
        merges.append(best)
        for word in words:
            at = 0
            while at + 1 < len(word):
                if (word[at], word[at + 1]) == best:
                    word[at : at + 2] = ["".join(best)]
                at += 1
    return merges


def observe(model, parts, call):
    """Calls the model and gives the results of its parts: one name for each result of a part, or none to leave it out."""
    seen = {}
    hooks = []
    for names, part in parts.items():
        def keep(_module, _inputs, output, names=names):
            results = output if isinstance(output, tuple) else (output,)
            for name, result in zip(names if isinstance(names, tuple) else (names,), results):
                seen[name] = result
        hooks.append(part.register_forward_hook(keep))
    with torch.no_grad():
        result = call()
    for hook in hooks:
        hook.remove()
    return result, seen


def observe_decoder(vae, latent):
    """The picture that an autoencoder makes of a latent one, and what its blocks give."""
    decoder = vae.decoder
    parts = {}
    if hasattr(decoder, "up_blocks"):
        parts = {"vae.mid": decoder.mid_block} | {f"vae.up.{i}": block for i, block in enumerate(decoder.up_blocks)}
    picture, seen = observe(vae, parts, lambda: vae.decode(latent).sample)
    return {**seen, "vae.picture": picture}


def draw(pipe, **arguments):
    """Runs a pipeline and gives the latent picture after each step, and the picture."""
    values = {}

    def after(_pipe, step, _time, state):
        values[f"step.{step}"] = state["latents"].clone()
        return {}

    result = pipe(output_type="np", callback_on_step_end=after, **arguments)
    values["picture"] = torch.tensor((result.images[0] * 255).round())
    return values


def rename(path, change):
    tensors = load_file(path)
    save_file({change(name): tensor for name, tensor in tensors.items()}, path, metadata={"format": "pt"})


def save(pipe, folder, parts, dtypes={}, shards={}):
    """Saves the parts, but keeps the tokenizers' files as the published models have them."""
    for name in parts:
        part = getattr(pipe, name)
        size = {"max_shard_size": shards[name]} if name in shards else {}
        part.to(dtypes.get(name, torch.float32)).save_pretrained(folder / name, **size)
    pipe.scheduler.save_pretrained(folder / "scheduler")
    pipe.save_config(folder)
