"""Models of true shapes with random weights, and how long PyTorch and ONNX Runtime take for them. See `measure`."""

import json
import math
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


def keep(model, path):
    """Writes a model whose weights are zeros: files of holes, which take no disk. Multiplying zeros takes as long."""
    kinds = {"torch.float32": ("F32", 4), "torch.bfloat16": ("BF16", 2)}
    header, end = {}, 0
    for name, tensor in model.state_dict().items():
        kind, size = kinds[str(tensor.dtype)]
        begin, end = end, end + tensor.numel() * size
        header[name] = {"dtype": kind, "shape": list(tensor.shape), "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.mkdir(parents=True, exist_ok=True)
    model.save_config(path)
    with open(path / "diffusion_pytorch_model.safetensors", "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + end)


def make(folder):
    import torch
    from diffusers import AutoencoderKL, UNet2DConditionModel

    for name, singles, doubles in [(f"klein-{FEW}", FEW, 1), (f"klein-{MANY}", MANY, 1), ("klein", 20, 5)]:
        keep(klein(doubles, singles), folder / name)
    with torch.device("meta"):
        keep(UNet2DConditionModel(sample_size=64, cross_attention_dim=768), folder / "unet")
        vae = AutoencoderKL(
            down_block_types=["DownEncoderBlock2D"] * 4,
            up_block_types=["UpDecoderBlock2D"] * 4,
            block_out_channels=(128, 256, 512, 512),
            layers_per_block=2,
            latent_channels=4,
        )
        keep(vae, folder / "vae")


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


def ort_times(folder):
    import numpy
    import onnxruntime

    random = numpy.random.default_rng(1)
    for path in sorted(folder.glob("*/model.onnx")):
        session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        inputs = {
            value.name: random.standard_normal(value.shape, dtype=numpy.float32) for value in session.get_inputs()
        }
        say(path.parent.name, "onnxruntime", timed(lambda: session.run([session.get_outputs()[-1].name], inputs), 3))
        del session


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
    elif what == "onnxruntime":
        ort_times(folder / "export")
    elif what == "report":
        report(folder)


if __name__ == "__main__":
    main()
