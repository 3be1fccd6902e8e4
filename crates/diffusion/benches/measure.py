"""Models of true shapes, and how long PyTorch and stable-diffusion.cpp take for them. See `measure`."""

import json
import math
import os
import resource
import statistics
import sys
from pathlib import Path

# Rows of text, and sides of a picture with their rows, for FLUX.2 klein: one row stands for 16x16 pixels.
TEXT = 512
SIDES = {512: 32, 1024: 64}
KLEIN = {
    "in_channels": 128,
    "num_attention_heads": 24,
    "attention_head_dim": 128,
    "joint_attention_dim": 7680,
    "guidance_embeds": False,
}
# Qwen3-4B, which encodes the prompts of klein. stable-diffusion.cpp runs it before the first step; klein reads its 27th
# layer last, so the others are left out.
ENCODER = {"layers": 27, "hidden": 2560, "inner": 9728, "heads": 32, "pairs": 8, "head": 128, "words": 151936}
# Single blocks of two models, whose difference is the time of blocks alone.
FEW, MANY = 1, 5


def seconds():
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def timed(work, runs):
    work()
    found = []
    for _ in range(runs):
        begin = seconds()
        work()
        found.append(seconds() - begin)
    return statistics.median(found)


def say(what, engine, value, unit="CPU-s"):
    print(f"{what}\t{engine}\t{value:.3f}\t{unit}", flush=True)


def randomise(model):
    """Small numbers that cost little to make: a large table of random ones, repeated."""
    import torch

    generator = torch.Generator().manual_seed(1)
    table = torch.randn(1 << 20, generator=generator)
    with torch.no_grad():
        for name, tensor in model.named_parameters():
            if tensor.dim() == 1:
                tensor.fill_(0.0 if name.endswith("bias") else 1.0)
                continue
            fan = math.sqrt(tensor[0].numel())
            count = tensor.numel()
            numbers = table.repeat(-(-count // table.numel()))[:count] / fan
            tensor.copy_(numbers.view(tensor.shape).to(tensor.dtype))


def klein(doubles, singles):
    import torch
    from diffusers import Flux2Transformer2DModel

    with torch.device("meta"):
        return Flux2Transformer2DModel(num_layers=doubles, num_single_layers=singles, **KLEIN).to(torch.bfloat16)


def zeros(shapes, kind, path):
    """Writes weights that are zeros: a file of holes, which takes no disk. Multiplying zeros takes as long."""
    header, end = {}, 0
    for name, shape in shapes.items():
        begin, end = end, end + math.prod(shape) * {"F32": 4, "BF16": 2}[kind]
        header[name] = {"dtype": kind, "shape": list(shape), "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + end)


def keep(model, path):
    tensors = model.state_dict()
    kind = {"torch.float32": "F32", "torch.bfloat16": "BF16"}[str(next(iter(tensors.values())).dtype)]
    path.mkdir(parents=True, exist_ok=True)
    model.save_config(path)
    zeros({name: tensor.shape for name, tensor in tensors.items()}, kind, path / "diffusion_pytorch_model.safetensors")


def single_file(tensors):
    """The shapes of klein by the names of a single file, which join the weights that read the same rows."""
    names = {
        "x_embedder": "img_in",
        "context_embedder": "txt_in",
        "time_guidance_embed.timestep_embedder.linear_1": "time_in.in_layer",
        "time_guidance_embed.timestep_embedder.linear_2": "time_in.out_layer",
        "double_stream_modulation_img.linear": "double_stream_modulation_img.lin",
        "double_stream_modulation_txt.linear": "double_stream_modulation_txt.lin",
        "single_stream_modulation.linear": "single_stream_modulation.lin",
        "norm_out.linear": "final_layer.adaLN_modulation.1",
        "proj_out": "final_layer.linear",
        "attn.to_q": "img_attn.qkv",
        "attn.to_k": "img_attn.qkv",
        "attn.to_v": "img_attn.qkv",
        "attn.add_q_proj": "txt_attn.qkv",
        "attn.add_k_proj": "txt_attn.qkv",
        "attn.add_v_proj": "txt_attn.qkv",
        "attn.to_out.0": "img_attn.proj",
        "attn.to_add_out": "txt_attn.proj",
        "attn.norm_q": "img_attn.norm.query_norm",
        "attn.norm_k": "img_attn.norm.key_norm",
        "attn.norm_added_q": "txt_attn.norm.query_norm",
        "attn.norm_added_k": "txt_attn.norm.key_norm",
        "ff.linear_in": "img_mlp.0",
        "ff.linear_out": "img_mlp.2",
        "ff_context.linear_in": "txt_mlp.0",
        "ff_context.linear_out": "txt_mlp.2",
    }
    single = {
        "attn.to_qkv_mlp_proj": "linear1",
        "attn.to_out": "linear2",
        "attn.norm_q": "norm.query_norm",
        "attn.norm_k": "norm.key_norm",
    }
    found = {}
    for name, tensor in tensors.items():
        part, shape = name.removesuffix(".weight"), list(tensor.shape)
        if part.startswith("single_transformer_blocks."):
            _, number, part = part.split(".", 2)
            part = f"single_blocks.{number}.{single[part]}"
        elif part.startswith("transformer_blocks."):
            _, number, part = part.split(".", 2)
            part = f"double_blocks.{number}.{names[part]}"
        else:
            part = names[part]
        whole = f"model.diffusion_model.{part}." + ("scale" if "_norm" in part else "weight")
        if whole in found:
            shape[0] += found[whole][0]
        found[whole] = shape
    return found


def encoder():
    hidden, inner, head = ENCODER["hidden"], ENCODER["inner"], ENCODER["head"]
    queries, keys = ENCODER["heads"] * head, ENCODER["pairs"] * head
    layer = {
        "input_layernorm": [hidden],
        "post_attention_layernorm": [hidden],
        "self_attn.q_norm": [head],
        "self_attn.k_norm": [head],
        "self_attn.q_proj": [queries, hidden],
        "self_attn.k_proj": [keys, hidden],
        "self_attn.v_proj": [keys, hidden],
        "self_attn.o_proj": [hidden, queries],
        "mlp.gate_proj": [inner, hidden],
        "mlp.up_proj": [inner, hidden],
        "mlp.down_proj": [hidden, inner],
    }
    found = {"model.embed_tokens.weight": [ENCODER["words"], hidden], "model.norm.weight": [hidden]}
    for number in range(ENCODER["layers"]):
        found |= {f"model.layers.{number}.{name}.weight": shape for name, shape in layer.items()}
    return found


def vae(**more):
    """The VAE of Stable Diffusion 1."""
    from diffusers import AutoencoderKL

    return AutoencoderKL(
        down_block_types=["DownEncoderBlock2D"] * 4,
        up_block_types=["UpDecoderBlock2D"] * 4,
        block_out_channels=(128, 256, 512, 512),
        layers_per_block=2,
        latent_channels=4,
        **more,
    )


def make(folder):
    import torch
    from diffusers import AutoencoderKLFlux2, UNet2DConditionModel

    for name, singles, doubles in [(f"klein-{FEW}", FEW, 1), (f"klein-{MANY}", MANY, 1), ("klein", 20, 5)]:
        keep(klein(doubles, singles), folder / name)
    with torch.device("meta"):
        keep(UNet2DConditionModel(sample_size=64, cross_attention_dim=768), folder / "unet")
        keep(vae(), folder / "vae")
        keep(AutoencoderKLFlux2(), folder / "klein-vae")
    zeros(single_file(klein(5, 20).state_dict()), "BF16", folder / "klein.safetensors")
    zeros(encoder(), "BF16", folder / "qwen.safetensors")


def sdcpp_times(folder, attention):
    """The time of a step of klein: the mean of two after the first, which reserves memory."""
    from stable_diffusion_cpp import StableDiffusion

    stable_diffusion = StableDiffusion(
        diffusion_model_path=str(folder / "klein.safetensors"),
        llm_path=str(folder / "qwen.safetensors"),
        vae_path=str(folder / "klein-vae" / "diffusion_pytorch_model.safetensors"),
        wtype="q8_0",
        n_threads=len(os.sched_getaffinity(0)),
        diffusion_flash_attn=attention == "flash",
    )
    moments = []

    def step(number, steps, _):
        # Other stages report progress too.
        if steps != 3:
            return
        moments.append(seconds())
        if number == 3:
            times = [after - before for before, after in zip(moments, moments[1:])]
            engine = "sd.cpp-q8_0" + ("-flash" if attention == "flash" else "")
            say("klein 512", engine, statistics.mean(times[-2:]))
            # The picture is not wanted.
            sys.stdout.flush()
            os._exit(0)

    stable_diffusion.generate_image(
        prompt="a lighthouse", width=512, height=512, sample_steps=3, cfg_scale=1.0, progress_callback=step
    )
    raise SystemExit("stable-diffusion.cpp ended before its third step")


def torch_times():
    import torch

    model = klein(1, MANY).to_empty(device="cpu").eval()
    randomise(model)
    blocks = model.single_transformer_blocks
    for side, rows in SIDES.items():
        positions = torch.zeros(rows * rows, 4)
        positions[:, 1] = torch.arange(rows).repeat_interleave(rows)
        positions[:, 2] = torch.arange(rows).repeat(rows)
        words = torch.zeros(TEXT, 4)
        words[:, 3] = torch.arange(TEXT)
        inputs = {
            "hidden_states": torch.randn(1, rows * rows, 128).to(torch.bfloat16),
            "encoder_hidden_states": torch.randn(1, TEXT, 7680).to(torch.bfloat16),
            "timestep": torch.tensor([0.5], dtype=torch.bfloat16),
            "img_ids": positions,
            "txt_ids": words,
            "guidance": None,
        }

        def work():
            with torch.no_grad():
                model(**inputs)

        for count in [FEW, MANY]:
            model.single_transformer_blocks = blocks[:count]
            say(f"klein-{count} {side}", "torch-bf16", timed(work, 3 if side == 512 else 1))


def report(path):
    """Times of single blocks, and ratios of our times to those of others."""
    found = {}
    for line in path.read_text().splitlines():
        what, engine, value, unit = line.split("\t")
        if unit == "CPU-s":
            found[what, engine] = float(value)
    for (what, engine), value in list(found.items()):
        if what.startswith(f"klein-{MANY} "):
            side = what.split()[1]
            few = found.get((f"klein-{FEW} {side}", engine))
            if few is not None:
                found[f"klein single block {side}", engine] = (value - few) / (MANY - FEW)
    for (what, engine), value in found.items():
        ours = found.get((what, "tintype"))
        ratio = f"{ours / value:.2f}" if ours and engine != "tintype" else ""
        print(f"{what:32} {engine:12} {value:8.2f} CPU-s  {ratio}")


def main():
    what, folder = sys.argv[1], Path(sys.argv[2])
    if what == "make":
        make(folder)
    elif what == "torch":
        torch_times()
    elif what == "sdcpp":
        sdcpp_times(folder, sys.argv[3])
    elif what == "report":
        report(folder)


if __name__ == "__main__":
    main()
