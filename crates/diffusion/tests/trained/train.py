"""Trains a small model that draws what a prompt says, and a LoRA that draws outlines only.

    python -m venv V && V/bin/pip install -r ../parity/requirements.txt && V/bin/python -B train.py WORK [STAGE...]

WORK is a folder for checkpoints: a stage that was interrupted continues from there. The stages, in order, are `vae`,
`text`, `model`, `lora`, `decoder`, `export` and `check`, together about an hour on one free core. `export` writes
`model/` and `outline.safetensors` beside this file; `check` counts how many prompts come out right with `diffusers`.
Nothing is downloaded.

The weights beside this file come from interrupted runs: batches were larger at first, and the weights of errors, the
rates and the share of plain backgrounds changed on the way. Nobody has run these settings from beginning to end.

The model is of the shape of Stable Diffusion 1.5 with fewer channels, for pictures of 64 pixels a side, and knows the
words of drawings.py only. Every other word of CLIP's vocabulary has an embedding of zeros. It is test data.
"""

import copy
import gzip
import json
import os
import pathlib
import random
import shutil
import sys
import time

os.environ["HF_HUB_OFFLINE"] = "1"

import numpy
import torch
from diffusers import (
    AutoencoderKL, DDPMScheduler, DPMSolverMultistepScheduler, StableDiffusionPipeline, UNet2DConditionModel,
)
from peft import LoraConfig
from PIL import Image
from safetensors.torch import save_file
from transformers import CLIPTextConfig, CLIPTextModel

HERE = pathlib.Path(__file__).parent
sys.path.append(str(HERE.parent / "parity"))

import drawings
from clip_vocabulary import END, MERGES, clip

WIDTH, TOKENS, WORDS = 64, 77, 49408
NOISE = {"beta_start": 0.00085, "beta_end": 0.012, "beta_schedule": "scaled_linear"}
# Encoded pictures that are kept, how many of them a step replaces, and how many it learns from.
POOL, FRESH, BATCH = 1024, 2, 16
STEPS = {"vae": 1500, "text": 450, "model": 5900, "lora": 900, "decoder": 400}
DROPPED = 0.1
RANK = 2


def autoencoder():
    return AutoencoderKL(
        block_out_channels=(16, 32, 48), down_block_types=("DownEncoderBlock2D",) * 3, latent_channels=4,
        up_block_types=("UpDecoderBlock2D",) * 3, layers_per_block=1, norm_num_groups=8, sample_size=drawings.SIDE,
    )


def unet():
    attends = ("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D")
    return UNet2DConditionModel(
        sample_size=drawings.SIDE // 4, block_out_channels=(32, 64, 96), down_block_types=attends,
        up_block_types=("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"), layers_per_block=1,
        attention_head_dim=4, cross_attention_dim=WIDTH, norm_num_groups=8,
    )


def text_encoder(words):
    return CLIPTextModel(CLIPTextConfig(
        vocab_size=words, hidden_size=WIDTH, intermediate_size=WIDTH * 4, num_hidden_layers=2, num_attention_heads=4,
        max_position_embeddings=TOKENS, hidden_act="quick_gelu", projection_dim=WIDTH, bos_token_id=WORDS - 2,
        eos_token_id=WORDS - 1,
    ))


def tensor(pictures):
    return torch.from_numpy(numpy.stack(pictures)).permute(0, 3, 1, 2).float() / 127.5 - 1


class Vocabulary:
    """The words that drawings have, by numbers from 1 on; 0 is any other word."""

    def __init__(self):
        self.clip = clip(END)
        chance = random.Random(0)
        prompts = [drawings.prompt(chance, *drawings.choose(chance)) for _ in range(5000)]
        known = {number for ids in self.clip(prompts).input_ids for number in ids}
        self.known = sorted(known)
        self.short = torch.zeros(WORDS, dtype=torch.long)
        self.short[self.known] = torch.arange(1, len(self.known) + 1)

    def read(self, prompts):
        ids = self.clip(prompts, padding="max_length", max_length=TOKENS, truncation=True).input_ids
        return self.short[torch.tensor(ids)]

    def longer(self, table):
        """The table of all words."""
        whole = torch.zeros(WORDS, table.shape[1])
        whole[self.known] = table[1:]
        return whole


class Stage:
    """Steps of a training, with checkpoints and a log."""

    def __init__(self, work, name, parts, rate, average=None):
        self.path, self.name, self.parts, self.rate = work / f"{name}.pt", name, parts, rate
        self.of, self.done, self.losses, self.began = STEPS[name], 0, [], time.time()
        self.parameters = [p for part in parts.values() for p in part.parameters() if p.requires_grad]
        self.optimizer = torch.optim.AdamW(self.parameters, lr=rate, weight_decay=1e-3, fused=True)
        self.average = {name: copy.deepcopy(part).requires_grad_(False) for name, part in parts.items()}
        self.means = [
            mean for name, part in parts.items()
            for mean, now in zip(self.average[name].parameters(), part.parameters()) if now.requires_grad
        ]
        self.keeps = average
        if self.path.exists():
            state = torch.load(self.path, weights_only=True)
            self.done = state["done"]
            self.optimizer.load_state_dict(state["optimizer"])
            self.optimizer.param_groups[0]["fused"] = True
            for name, part in parts.items():
                part.load_state_dict(state[name])
                self.average[name].load_state_dict(state[f"{name}.average"])

    def __iter__(self):
        while self.done < self.of:
            warm, part = min(1, (self.done + 1) / 100), self.done / self.of
            for group in self.optimizer.param_groups:
                group["lr"] = self.rate * warm * max(0.02, min(1, (1 - part) / 0.35))
            yield self.done
        self.save()

    def learn(self, loss):
        self.optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.parameters, 1.0)
        self.optimizer.step()
        self.done += 1
        self.losses.append(loss.item())
        keep = min(self.keeps, (self.done + 1) / (self.done + 10))
        with torch.no_grad():
            torch._foreach_lerp_(self.means, self.parameters, 1 - keep)
        if self.done % 100 == 0:
            mean, seconds = sum(self.losses[-100:]) / 100, time.time() - self.began
            print(f"{self.name} {self.done}/{self.of} loss {mean:.5f} {seconds:.0f} s", flush=True)
        if self.done % 200 == 0:
            self.save()

    def save(self):
        state = {"done": self.done, "optimizer": self.optimizer.state_dict()}
        for name, part in self.parts.items():
            state |= {name: part.state_dict(), f"{name}.average": self.average[name].state_dict()}
        torch.save(state, self.path.with_suffix(".new"))
        self.path.with_suffix(".new").replace(self.path)


def train_vae(work):
    """Most steps see a quarter of a picture, which is quicker."""
    chance = random.Random(1)
    vae = autoencoder()
    stage = Stage(work, "vae", {"vae": vae}, 2e-3, average=0.99)
    for step in stage:
        cuts = step < stage.of * 0.8
        pictures = tensor([drawings.drawing(chance, chance.random() < 0.4)[0] for _ in range(16 if cuts else 6)])
        if cuts:
            across, down = (chance.randrange(0, 33) for _ in range(2))
            pictures = pictures[:, :, down : down + 32, across : across + 32]
        seen = vae.encode(pictures).latent_dist
        apart = vae.decode(seen.sample()).sample - pictures
        spread = 0.5 * (seen.mean**2 + seen.var - 1 - seen.logvar).mean()
        stage.learn((apart**2).mean() + 0.2 * apart.abs().mean() + 1e-3 * spread)


def finished(work, name, part, model):
    model.load_state_dict(torch.load(work / f"{name}.pt", weights_only=True)[f"{part}.average"])
    return model.eval().requires_grad_(False)


def train_decoder(work):
    """Sharpens what the decoder gives. The encoder stays as the model knows it."""
    chance = random.Random(4)
    vae = finished(work, "vae", "vae", autoencoder())
    for part in [vae.decoder, vae.post_quant_conv]:
        part.requires_grad_(True)
    stage = Stage(work, "decoder", {"vae": vae}, 1.5e-3, average=0.99)
    for _ in stage:
        pictures = tensor([drawings.drawing(chance, chance.random() < 0.3)[0] for _ in range(8)])
        with torch.no_grad():
            latents = vae.encode(pictures).latent_dist.mean
        apart = vae.decode(latents + 0.05 * torch.randn_like(latents)).sample - pictures
        stage.learn((apart**2).mean() + 0.2 * apart.abs().mean())


def train_text(work):
    """Teaches the text encoder to tell what a picture shows: in every state after the words, and in the mean of all."""
    words, chance = Vocabulary(), random.Random(5)
    text = text_encoder(len(words.known) + 1)
    table = text.get_input_embeddings()
    torch.nn.init.normal_(table.weight, std=0.3)
    parts = [drawings.SHAPES, drawings.COLOURS, drawings.SIZES, drawings.PLACES, [None, *drawings.COLOURS]]
    classes = [{name: number for number, name in enumerate(part, 1)} for part in parts]
    heads = torch.nn.ModuleList(torch.nn.Linear(WIDTH, len(part) + 1) for part in classes)
    stage = Stage(work, "text", {"text": text, "heads": heads}, 2e-3, average=0.99)
    for _ in stage:
        table.weight.data[0] = 0
        chosen = [drawings.choose(chance) for _ in range(32)]
        prompts = [drawings.with_other_words(chance, drawings.prompt(chance, *one)) for one in chosen]
        dropped = [chance.random() < DROPPED for _ in prompts]
        states = text(words.read(["" if drop else one for one, drop in zip(prompts, dropped)])).last_hidden_state
        seen = [states.mean(dim=1), states[:, chance.randrange(24, TOKENS)]]
        loss = 0
        for head, part, values in zip(heads, classes, zip(*chosen)):
            right = torch.tensor([0 if drop else part[value] for drop, value in zip(dropped, values)])
            loss = loss + sum(torch.nn.functional.cross_entropy(head(state), right) for state in seen)
        stage.learn(loss)


class Pool:
    """Encoded pictures with their prompts, some of which are replaced in each step."""

    def __init__(self, work, words, seed, outline=False):
        self.vae, self.words, self.outline = finished(work, "vae", "vae", autoencoder()), words, outline
        self.chance = random.Random(seed)
        made = [self.make(32) for _ in range(POOL // 32)]
        self.latents, self.ids = (torch.cat(parts) for parts in zip(*made))
        self.scaling = float(1 / self.latents.std())
        print(f"{POOL} pictures, scaling {self.scaling:.4f}", flush=True)
        self.next = 0

    @torch.no_grad()
    def make(self, count):
        pictures, prompts = zip(*[drawings.drawing(self.chance, self.outline) for _ in range(count)])
        prompts = [drawings.with_other_words(self.chance, prompt) for prompt in prompts]
        prompts = ["" if self.chance.random() < DROPPED else prompt for prompt in prompts]
        return self.vae.encode(tensor(pictures)).latent_dist.mean, self.words.read(prompts)

    def batch(self, scaling):
        at = slice(self.next, self.next + FRESH)
        self.latents[at], self.ids[at] = self.make(FRESH)
        self.next = (self.next + FRESH) % POOL
        chosen = torch.randint(0, POOL, (BATCH,))
        return self.latents[chosen] * scaling, self.ids[chosen]


def noise_loss(schedule, unet, latents, states):
    """The error of the noise that the UNet sees.

    Times with much noise, which decide on colours, come more often and weigh more: their errors are small, but grow.
    """
    times = (torch.rand(len(latents)).sqrt() * 1000).long().clamp(max=999)
    noise = torch.randn_like(latents)
    found = unet(schedule.add_noise(latents, noise, times), times, states).sample
    signal = schedule.alphas_cumprod[times] / (1 - schedule.alphas_cumprod[times])
    weight = signal.rsqrt().clamp(max=4)
    return (((found - noise) ** 2).mean(dim=(1, 2, 3)) * weight).mean()


def train_unet(work, stage, model, seed, outline=False):
    words, schedule = Vocabulary(), DDPMScheduler(**NOISE)
    text = finished(work, "text", "text", text_encoder(len(words.known) + 1))
    pool = Pool(work, words, seed, outline)
    if not (work / "scaling.json").exists():
        (work / "scaling.json").write_text(json.dumps(pool.scaling))
    scaling = json.loads((work / "scaling.json").read_text())
    for _ in stage:
        latents, ids = pool.batch(scaling)
        with torch.no_grad():
            states = text(ids).last_hidden_state
        stage.learn(noise_loss(schedule, model, latents, states))


def train_model(work):
    model = unet()
    train_unet(work, Stage(work, "model", {"unet": model}, 1.2e-3, average=0.995), model, 2)


def add_lora(unet):
    """Two matrices beside each layer of the way up that a LoRA changes."""
    targets = r"up_blocks\..*\.(to_q|to_k|to_v|to_out\.0|conv1|conv2)|down_blocks\..*\.(conv1|conv2)|conv_out"
    unet.add_adapter(LoraConfig(r=RANK, lora_alpha=RANK, init_lora_weights="gaussian", target_modules=targets))
    return unet


def train_lora(work):
    model = add_lora(finished(work, "model", "unet", unet()))
    train_unet(work, Stage(work, "lora", {"unet": model}, 3e-3, average=0.99), model, 3, outline=True)


def pipeline(work, lora=False):
    words = Vocabulary()
    text = finished(work, "text", "text", text_encoder(len(words.known) + 1))
    whole = text_encoder(WORDS)
    state = text.state_dict()
    name = next(name for name in state if name.endswith("token_embedding.weight"))
    state[name] = words.longer(state[name])
    whole.load_state_dict(state)
    vae = finished(work, "decoder" if (work / "decoder.pt").exists() else "vae", "vae", autoencoder())
    vae.register_to_config(scaling_factor=json.loads((work / "scaling.json").read_text()))
    model = finished(work, "lora", "unet", add_lora(unet())) if lora else finished(work, "model", "unet", unet())
    pipe = StableDiffusionPipeline(
        vae=vae, text_encoder=whole.eval(), tokenizer=words.clip, unet=model, safety_checker=None,
        scheduler=DPMSolverMultistepScheduler(**NOISE, steps_offset=1), feature_extractor=None,
        requires_safety_checker=False,
    )
    pipe.set_progress_bar_config(disable=True)
    return pipe


def export(work):
    """Writes the model as `diffusers` does, in 16 bits, and the LoRA with the names of kohya's scripts."""
    folder = HERE / "model"
    shutil.rmtree(folder, ignore_errors=True)
    pipe = pipeline(work)
    for name in ["vae", "text_encoder", "unet"]:
        getattr(pipe, name).to(torch.float16).save_pretrained(folder / name)
    pipe.scheduler.save_pretrained(folder / "scheduler")
    pipe.save_config(folder)
    write_tokenizer(folder / "tokenizer", pipe.tokenizer)
    tensors = {}
    for name, value in pipeline(work, lora=True).unet.state_dict().items():
        for there, here in [(".lora_A.default.weight", "lora_down"), (".lora_B.default.weight", "lora_up")]:
            if name.endswith(there):
                layer = "lora_unet_" + name.removesuffix(there).replace(".", "_")
                tensors[f"{layer}.{here}.weight"] = value.to(torch.float16).contiguous()
                tensors[f"{layer}.alpha"] = torch.tensor(float(RANK))
    save_file(tensors, HERE / "outline.safetensors")
    files = [HERE / "outline.safetensors", *sorted(path for path in folder.rglob("*") if path.is_file())]
    for path in files:
        print(f"{path.relative_to(HERE)}: {path.stat().st_size} bytes")
    print(f"together {sum(path.stat().st_size for path in files)} bytes")


def write_tokenizer(folder, tokenizer):
    folder.mkdir()
    words = json.dumps(tokenizer.get_vocab(), ensure_ascii=False, separators=(",", ":"))
    (folder / "vocab.json").write_text(words)
    (folder / "merges.txt").write_text("#version: 0.2\n" + gzip.decompress(MERGES.read_bytes()).decode())
    config = {
        "bos_token": "<|startoftext|>", "eos_token": END, "model_max_length": TOKENS, "pad_token": END,
        "tokenizer_class": "CLIPTokenizer", "unk_token": END,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")


# How much of its box a shape fills, as in sight.rs.
FILLS = {"circle": (0.67, 0.83), "square": (0.85, 1.01), "triangle": (0.40, 0.65)}


def measure(picture):
    """The name of the colour of the middle and of the corner, and how much of its box the shape fills."""
    pixels = numpy.asarray(picture).astype(int)
    named = lambda rgb: min(drawings.COLOURS, key=lambda name: sum((numpy.array(drawings.COLOURS[name]) - rgb) ** 2))
    ground = numpy.median(pixels[2:6].reshape(-1, 3), axis=0)
    shape = ((pixels - ground) ** 2).sum(axis=2) > 80**2
    rows, columns = shape.any(axis=1).nonzero()[0], shape.any(axis=0).nonzero()[0]
    if len(rows) == 0:
        return "nothing", named(ground), 0.0
    box = (rows[-1] - rows[0] + 1) * (columns[-1] - columns[0] + 1)
    return named(numpy.median(pixels[shape], axis=0)), named(ground), float(shape.sum() / box)


def check(work, seeds=(1, 2, 3, 4), steps=12):
    """Counts the prompts that come out right, and keeps their pictures."""
    right, fills, sheet, pipe = 0, {shape: [] for shape in drawings.SHAPES}, [], pipeline(work)
    for colour in drawings.COLOURS:
        for shape in drawings.SHAPES:
            ground = "blue" if colour == "white" else "white"
            prompt = f"a {colour} {shape}" + ("" if ground == "white" else f" on a {ground} background")
            for seed in seeds:
                picture = pipe(
                    prompt, height=drawings.SIDE, width=drawings.SIDE, num_inference_steps=steps, guidance_scale=4.0,
                    generator=torch.Generator().manual_seed(seed),
                ).images[0]
                found, behind, fill = measure(picture)
                least, most = FILLS[shape]
                fills[shape].append(fill)
                sheet.append(numpy.asarray(picture))
                if (found, behind) == (colour, ground) and least < fill < most:
                    right += 1
                else:
                    print(f"{prompt}, seed {seed}: {found} on {behind}, fills {fill:.2f} of its box")
    print(f"{right} of {len(sheet)} right")
    for shape, found in fills.items():
        print(f"a {shape} fills {min(found):.2f} to {max(found):.2f} of its box")
    rows = [numpy.concatenate(sheet[at : at + 12], axis=1) for at in range(0, len(sheet), 12)]
    Image.fromarray(numpy.concatenate(rows)).save(work / "check.png")


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(0)
    work = pathlib.Path(sys.argv[1])
    work.mkdir(parents=True, exist_ok=True)
    stages = {"vae": train_vae, "text": train_text, "model": train_model, "lora": train_lora}
    stages |= {"decoder": train_decoder, "export": export, "check": check}
    for name in sys.argv[2:] or stages:
        stages[name](work)
