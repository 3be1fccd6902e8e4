"""Whole images of Stable Diffusion 1.5 in the four steps of LCM, by both programs. See `measure`."""

import gzip
import json
import os
import resource
import shutil
import signal
import statistics
import subprocess
import sys
from pathlib import Path

from measure import randomise, say, seconds, vae

MERGES = Path(__file__).parents[1] / "src" / "tokenizer" / "openai_clip" / "merges.txt.gz"
PROMPT = "a lighthouse in a storm, oil painting"
SIDE, STEPS = 512, 4
NAME = f"lcm {SIDE}"
# Images, of which the middle time counts.
RUNS = 3
PART = "diffusion_pytorch_model.safetensors"


def make(folder):
    """The folder of a pipeline with random weights in F16, which both programs read."""
    import torch
    from diffusers import LCMScheduler, UNet2DConditionModel
    from transformers import CLIPTextConfig, CLIPTextModel

    if (folder / "model_index.json").exists():
        return
    with torch.device("meta"):
        unet = UNet2DConditionModel(sample_size=64, cross_attention_dim=768)
        decoder = vae(sample_size=SIDE)
        clip = CLIPTextConfig(
            vocab_size=49408, hidden_size=768, intermediate_size=3072, num_hidden_layers=12, num_attention_heads=12,
            max_position_embeddings=77, hidden_act="quick_gelu", bos_token_id=49406, eos_token_id=49407,
        )  # fmt: skip
        text = CLIPTextModel(clip)
    # The published files have this prefix, which newer releases of the library leave out.
    prefix = "" if next(iter(text.state_dict())).startswith("text_model.") else "text_model."
    keep(unet, folder / "unet", PART)
    keep(decoder, folder / "vae", PART)
    keep(text, folder / "text_encoder", "model.safetensors", prefix)
    tokenizer(folder / "tokenizer")
    schedule = {"beta_start": 0.00085, "beta_end": 0.012, "beta_schedule": "scaled_linear"}
    LCMScheduler(**schedule, clip_sample=False).save_pretrained(folder / "scheduler")
    parts = {
        "scheduler": ["diffusers", "LCMScheduler"],
        "text_encoder": ["transformers", "CLIPTextModel"],
        "tokenizer": ["transformers", "CLIPTokenizer"],
        "unet": ["diffusers", "UNet2DConditionModel"],
        "vae": ["diffusers", "AutoencoderKL"],
    }
    index = {"_class_name": "StableDiffusionPipeline", **parts}
    # The last file, so that a folder with it is complete.
    (folder / "model_index.json").write_text(json.dumps(index, indent=2) + "\n")


def keep(model, path, file, prefix=""):
    import torch
    from safetensors.torch import save_file

    path.mkdir(parents=True, exist_ok=True)
    if hasattr(model, "save_config"):
        model.save_config(path)
    else:
        model.config.architectures = [type(model).__name__]
        model.config.save_pretrained(path)
    model = model.to(torch.float16).to_empty(device="cpu")
    randomise(model)
    save_file({prefix + name: tensor for name, tensor in model.state_dict().items()}, path / file)


def tokenizer(path):
    """The vocabulary of CLIP, which also lies in stable-diffusion.cpp."""
    merges = gzip.decompress(MERGES.read_bytes()).decode().splitlines()
    symbols = [chr(code) for first, last in ["!~", "¡¬", "®ÿ", "ĀŃ"] for code in range(ord(first), ord(last) + 1)]
    words = symbols + [symbol + "</w>" for symbol in symbols] + [merge.replace(" ", "", 1) for merge in merges]
    begin, end = "<|startoftext|>", "<|endoftext|>"
    numbers = {word: number for number, word in enumerate([*words, begin, end])}
    config = {
        "tokenizer_class": "CLIPTokenizer", "model_max_length": 77, "bos_token": begin, "eos_token": end,
        "pad_token": end, "unk_token": end,
    }  # fmt: skip
    path.mkdir(parents=True, exist_ok=True)
    (path / "vocab.json").write_text(json.dumps(numbers, ensure_ascii=False))
    (path / "merges.txt").write_text("#version: 0.2\n" + "\n".join(merges) + "\n")
    (path / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")


class Server:
    """`tintype serve` with the model, and the CPU time of all its processes."""

    def __init__(self, program, data, model):
        self.program, self.data = program, data
        # With so much time no image is made at a smaller size.
        flags = ["--engine-sizes", f"{SIDE}x{SIDE}", "--render-timeout", "9m", "--model", model]
        flags += ["--listen", "127.0.0.1:0", "--data", data]
        self.process = subprocess.Popen([program, "serve", *flags], stdout=subprocess.PIPE, text=True)
        self.url = ""
        for line in self.process.stdout:
            address = next((word for word in line.split() if word.startswith("http://127.0.0.1:")), "")
            self.url = self.url or "/".join(address.split("/")[:3])
            if line == "Ready.\n":
                break
        self.key = (data / "first-key").read_text().strip()

    def processes(self):
        """The fields of `/proc/PID/stat` after the name, of the service and all processes that it has started."""
        found = {}
        for path in Path("/proc").glob("[0-9]*/stat"):
            try:
                found[int(path.parent.name)] = path.read_text().rpartition(")")[2].split()
            except OSError:
                continue
        ours = [self.process.pid]
        for process in ours:
            ours += [child for child, fields in found.items() if int(fields[1]) == process]
        return {process: found[process] for process in ours}

    def engine(self):
        """The process of the engine."""
        words = lambda process: Path(f"/proc/{process}/cmdline").read_bytes().split(b"\0")
        return next(process for process in self.processes() if b"render-diffusion" in words(process))

    def seconds(self):
        """The CPU time of all processes, with those that have ended, and of the engine's process."""
        ticks = os.sysconf("SC_CLK_TCK")
        of = {process: sum(map(int, fields[11:15])) / ticks for process, fields in self.processes().items()}
        return sum(of.values()), of[self.engine()]

    def image(self, *preset):
        words = ["generate", PROMPT, *preset, "--seed", "1", "--url", self.url, "--out", self.data / "out"]
        environment = {**os.environ, "TINTYPE_KEY": self.key}
        subprocess.run([self.program, *words], check=True, env=environment, stdout=sys.stderr)

    def timed(self, *preset):
        """The CPU time of an image, of all processes and of the engine's."""
        before = self.seconds()
        self.image(*preset)
        return [after - begin for begin, after in zip(before, self.seconds())]

    def memory(self):
        """The most memory of the engine's process, in GiB, with the weights that it has mapped."""
        status = Path(f"/proc/{self.engine()}/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM:")) / (1 << 20)

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait()


def tintype_times(folder, program):
    data, model = folder.parent / "data", "lcm-measured"
    shutil.rmtree(data, ignore_errors=True)
    for words in [["model", "add", folder, "--name", model], ["engine", "check", "diffusion", "--model", model]]:
        # The check also measures the speed of the engine, which its first start on a machine does.
        subprocess.run([program, *words, "--data", data], check=True, stdout=sys.stderr)
    (data / "tintype.toml").write_text("[preset.once]\nsteps = 1\n")
    server = Server(program, data, model)
    try:
        server.image()
        first, _ = server.seconds()
        images = [server.timed() for _ in range(RUNS)]
        one_step, _ = server.timed("--preset", "once")
        memory = server.memory()
    finally:
        server.stop()
    # What an image takes besides its steps is the same in one step.
    image, engine = map(statistics.median, zip(*images))
    steps = (image - one_step) / (STEPS - 1) * STEPS
    say(f"{NAME} start and first image", "tintype", first)
    say(NAME, "tintype", image)
    say(f"{NAME} steps", "tintype", steps)
    say(f"{NAME} all but steps", "tintype", image - steps)
    say(f"{NAME} outside the engine", "tintype", image - engine)
    say(f"{NAME} memory at most", "tintype", memory, "GiB")


def sdcpp_times(folder, kind):
    # Threads that wait for each other would count as busy, and all the more beside other work.
    os.environ["OMP_WAIT_POLICY"] = "passive"
    from stable_diffusion_cpp import StableDiffusion

    stable_diffusion = StableDiffusion(
        model_path=str(folder),
        n_threads=len(os.sched_getaffinity(0)),
        flash_attn=kind == "flash",
        diffusion_conv_direct=kind == "direct",
        vae_conv_direct=kind == "direct",
    )

    def image():
        """The CPU time of an image, its steps, the rest, and of the rest the text encoder and the decoder."""
        moments = [seconds()]
        ended = lambda number, steps, _: moments.append(seconds()) if steps == STEPS else None
        settings = {"sample_method": "lcm", "sample_steps": STEPS, "cfg_scale": 1.0, "seed": 1}
        [picture] = stable_diffusion.generate_image(
            prompt=PROMPT, width=SIDE, height=SIDE, progress_callback=ended, **settings
        )
        least, most = picture.convert("L").getextrema()
        if least == most or len(moments) != STEPS + 2:
            sys.exit(f"stable-diffusion.cpp gave a picture of one colour, or {len(moments)} moments")
        end, steps = seconds(), moments[-1] - moments[1]
        whole = end - moments[0]
        return whole, steps, whole - steps, moments[1] - moments[0], end - moments[-1]

    # It loads all weights before the first image, which therefore counts.
    start = seconds()
    images = [image() for _ in range(RUNS)]
    first = start + images[0][0]
    whole, steps, rest, text, decoding = map(statistics.median, zip(*images))
    engine = "sd.cpp-f16" + ("" if kind == "plain" else f"-{kind}")
    say(f"{NAME} start and first image", engine, first)
    say(NAME, engine, whole)
    say(f"{NAME} steps", engine, steps)
    say(f"{NAME} all but steps", engine, rest)
    say(f"{NAME} text", engine, text)
    say(f"{NAME} decoding", engine, decoding)
    say(f"{NAME} memory at most", engine, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << 20), "GiB")


def main():
    what, folder = sys.argv[1], Path(sys.argv[2]) / "lcm"
    if what == "make":
        make(folder)
    elif what == "tintype":
        tintype_times(folder, Path(sys.argv[3]).resolve())
    elif what == "sdcpp":
        sdcpp_times(folder, sys.argv[3])


if __name__ == "__main__":
    main()
