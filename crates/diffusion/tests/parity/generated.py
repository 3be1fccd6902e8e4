"""Draws random tiny configurations of a family from a seed, and records what diffusers makes of each.

    python generated.py FOLDER COUNT [FAMILY...]

writes COUNT configurations of each family to FOLDER/configurations. The weights are whole steps of a power of two, which a
seed decides, so a case is a list of tensors without their numbers; generated.rs makes the same numbers.
"""

import contextlib
import gzip
import inspect
import json
import os
import pathlib
import random
import sys
import tempfile
import traceback
import warnings

os.environ["HF_HUB_OFFLINE"] = "1"

import numpy
import torch
import transformers
from diffusers import DiffusionPipeline
from diffusers.utils import logging
from safetensors import safe_open
from safetensors.torch import save_file

import drawn_parts
import drawn_schedulers
import drawn_transformers
from shared import PROMPTS, draw, numbers

FAMILIES = {
    "sd15": drawn_parts.sd15, "sdxl": drawn_parts.sdxl, "flux2_klein": drawn_transformers.flux2_klein,
    "z_image": drawn_transformers.z_image,
}
SEED = int(os.environ.get("SEED", 1))
# The configurations that the test suite compares, by their numbers.
COMMITTED = {
    "sd15": [0, 2, 4, 5, 8, 9, 10, 11, 12, 18, 28, 34, 38],
    "sdxl": [0, 3, 4, 5, 6, 8, 9, 10, 15, 16, 17, 22, 31],
    "flux2_klein": [0, 2, 3, 9, 12, 15, 20, 25, 36, 41, 43],
    "z_image": [1, 2, 3, 4, 5, 6, 7, 12, 29, 33, 34, 47],
}
DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
STEPS = 32


def steps(seed, count):
    """Odd multiples of 1/32 between -1 and 1, by splitmix64."""
    with numpy.errstate(over="ignore"):
        z = numpy.arange(1, count + 1, dtype=numpy.uint64) * numpy.uint64(0x9E3779B97F4A7C15) + numpy.uint64(seed)
        z = (z ^ (z >> numpy.uint64(30))) * numpy.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> numpy.uint64(27))) * numpy.uint64(0x94D049BB133111EB)
        z = z ^ (z >> numpy.uint64(31))
    return ((z >> numpy.uint64(59)).astype(numpy.int64) * 2 - 31) / STEPS


def scale(name, shape):
    """The power of two by which the numbers of a tensor are multiplied, and what is added to them."""
    if "lora" in name:
        fan = numpy.prod(shape[1:])
        return round(numpy.log2(3 ** 0.5 * fan ** -0.5)) - (2 if "up." in name or "lora_B" in name else 0), 0
    if len(shape) > 1:
        words = ("token_embedding", "position_embedding", "positional_embedding", "embed_tokens")
        if any(word in name for word in words):
            return 0, 0
        fan = shape[0] if name.endswith("text_projection") else numpy.prod(shape[1:])
        return round(numpy.log2(3 ** 0.5 * float(fan) ** -0.5)), 0
    return (-2, 1) if name.endswith(("weight", "running_var")) else (-3, 0)


def fill(path, seed):
    """Replaces the numbers in a file of weights, and gives the list of its tensors."""
    listed, tensors, at = [], {}, 0
    with safe_open(path, "pt") as file:
        metadata = file.metadata()
        for name in sorted(file.keys()):
            old = file.get_tensor(name)
            kind = {dtype: text for text, dtype in DTYPES.items()}.get(old.dtype)
            if kind is None or old.dim() == 0:
                listed.append([name, str(old.dtype), list(old.shape), None, old.float().flatten().tolist()])
                tensors[name] = old
                continue
            power, more = scale(name, old.shape)
            new = steps(seed + at, old.numel()) * 2.0**power + more
            at += 1_000_003
            tensors[name] = torch.tensor(new, dtype=torch.float64).to(old.dtype).reshape(old.shape)
            listed.append([name, kind, list(old.shape), power, more])
    save_file(tensors, path, metadata=metadata)
    return {"seed": seed, "metadata": metadata, "tensors": listed}


def without_defaults(path, kind):
    """Leaves out the fields that have their default, as older folders do."""
    config, known = json.loads(path.read_text()), inspect.signature(kind.__init__).parameters
    plain = lambda value: list(value) if isinstance(value, tuple) else value
    kept = {name: value for name, value in config.items() if name not in known or plain(known[name].default) != value}
    path.write_text(json.dumps(kept, indent=2) + "\n")


def collect(folder, seed, texts):
    """The files of a folder: weights as lists, all others as numbers of texts."""
    files, weights = {}, {}
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        name = str(path.relative_to(folder))
        if name.startswith("beside/"):
            continue
        if path.suffix == ".safetensors":
            weights[name] = fill(path, seed + len(weights) * 7_919_000_017)
        else:
            text = path.read_text()
            if text not in texts:
                texts.append(text)
            files[name] = texts.index(text)
    return {"files": files, "weights": weights}


def load(drawing, folder):
    """The pipeline that diffusers reads from the folder."""
    if drawing.single:
        pipe = drawing.kind.from_single_file(
            folder / drawing.single, config=str(folder / "beside"), local_files_only=True, torch_dtype=torch.float32,
        )
    else:
        pipe = DiffusionPipeline.from_pretrained(folder, torch_dtype=torch.float32, **drawing.loading)
    pipe.set_progress_bar_config(disable=True)
    for number, (name, weight) in enumerate(drawing.loras.items()):
        pipe.load_lora_weights(folder / name, adapter_name=f"lora_{number}")
    if drawing.loras:
        pipe.set_adapters([f"lora_{number}" for number in range(len(drawing.loras))], list(drawing.loras.values()))
    return pipe


@contextlib.contextmanager
def shaken(pipe):
    """Changes what the model is asked and what a step gives, as another order of additions does by less."""
    model, generator = pipe.unet if hasattr(pipe, "unet") else pipe.transformer, torch.Generator().manual_seed(3)
    change = lambda x, by: x * (1 + by * torch.randn(x.shape, generator=generator))

    def ask(_module, inputs, named):
        if not inputs:
            return inputs, {**named, "hidden_states": change(named["hidden_states"], 1e-5)}
        first = inputs[0]
        return ([change(x, 1e-5) for x in first] if isinstance(first, list) else change(first, 1e-5), *inputs[1:]), named

    def step(answer, time, sample, **named):
        first, *rest = before(answer, time, change(sample, 3e-7), **named)
        return (change(first, 3e-7), *rest)

    hook, before = model.register_forward_pre_hook(ask, with_kwargs=True), pipe.scheduler.step
    pipe.scheduler.step = step
    yield
    hook.remove()
    pipe.scheduler.step = before


def is_steady(pipe, latent, again):
    """Whether errors do not grow out of bounds in the model and its scheduler, so that it can be compared."""
    with shaken(pipe):
        other = again()
    size = latent.abs().clamp(min=float((latent**2).mean().sqrt()))
    return bool(((other - latent).abs() / size).max() < 1e-3)


def render(drawing, pipe, rng):
    """What diffusers makes, with the settings as Tintype takes them."""
    multiple = max(8, drawing.multiple(pipe))
    sides = [side for side in range(max(32, 4 * multiple), max(64, 6 * multiple) + 1, multiple)]
    width, height = rng.choice(sides), rng.choice(sides)
    count, seed, prompt = rng.randint(2, 4), rng.randrange(2**31), rng.choice(PROMPTS[:8])
    arguments, settings = drawing.settings(rng)
    if type(pipe.scheduler).__name__ == "TCDScheduler":
        # The default of the scheduler, which pipelines replace by another one.
        arguments["eta"] = 0.3
    arguments |= {"height": height, "width": width, "num_inference_steps": count, "prompt": prompt}

    def drawn():
        values = draw(pipe, generator=torch.Generator().manual_seed(seed), **arguments)
        last = max(int(name.removeprefix("step.")) for name in values if name != "picture")
        return drawing.latent(values[f"step.{last}"], height, width), values["picture"]

    latent, picture = drawn()
    if not latent.isfinite().all() or latent.abs().max() > 1e4:
        raise ValueError("diffusers makes no picture of it")
    if not is_steady(pipe, latent, lambda: drawn()[0]):
        raise ValueError("rounding errors grow")
    recorded = {"latent": numbers(latent), "picture": numbers(picture)}
    case = {"width": width, "height": height, "steps": count, "seed": seed, "prompt": prompt, **settings}
    return case | {"values": recorded}


def case(family, number, texts, tell=lambda _: None):
    """One configuration with its picture. What diffusers cannot use is drawn again."""
    for attempt in range(40):
        rng = random.Random(f"{SEED} {family} {number} {attempt}")
        torch.manual_seed(0)
        with tempfile.TemporaryDirectory() as folder:
            folder = pathlib.Path(folder)
            try:
                drawing = FAMILIES[family](rng, folder)
                if rng.random() < 0.3:
                    for name, kind in drawing.kinds.items():
                        without_defaults(folder / name, kind)
                found = collect(folder, rng.randrange(2**40), texts)
                pipe = load(drawing, folder)
                rendered = render(drawing, pipe, rng)
            except Exception as error:
                if os.environ.get("TELL"):
                    traceback.print_exc()
                tell(f"{family} {number}: diffusers refuses {drawing_of(locals())}: {str(error)[:200]}")
                continue
        more = {"single": drawing.single, "loras": drawing.loras, "odd": drawing.odd, "number": number}
        return {**found, **more, **rendered}
    raise RuntimeError(f"{family} {number}: nothing that diffusers can use")


def drawing_of(variables):
    return variables["drawing"].odd if "drawing" in variables else "what it was to make"


def write(out, family, numbers_of_cases, tell=lambda _: None):
    texts = []
    cases = [case(family, number, texts, tell) for number in numbers_of_cases]
    used = sorted({index for case in cases for index in case["files"].values()})
    for one in cases:
        one["files"] = {name: used.index(index) for name, index in one["files"].items()}
    text = json.dumps({"texts": [texts[index] for index in used], "cases": cases}, separators=(",", ":"))
    (out / "configurations").mkdir(parents=True, exist_ok=True)
    (out / "configurations" / f"{family}.json.gz").write_bytes(gzip.compress(text.encode(), 9, mtime=0))


def generated(out):
    """The configurations of the test suite."""
    for family, chosen in COMMITTED.items():
        write(out, family, chosen)


if __name__ == "__main__":
    torch.set_grad_enabled(False)
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    for library in (logging, transformers.utils.logging):
        library.set_verbosity_error()
        library.disable_progress_bar()
    for family in sys.argv[3:] or FAMILIES:
        write(pathlib.Path(sys.argv[1]), family, range(int(sys.argv[2])), lambda line: print(line, file=sys.stderr))
