"""Pictures per second of Tintype through HTTP, and of diffusers, with the same random weights. See `gpu`."""

import json
import math
import os
import shutil
import signal
import struct
import subprocess
import sys
import threading
import time
import urllib.request
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

DEVICE = os.environ["DEVICE"]
TINY = bool(os.environ.get("TINY"))
FIXTURES = Path(__file__).resolve().parent.parent / "tests" / "parity"
PROMPT = "a lighthouse in a storm, oil painting"
# Tasks that are measured, for each picture of a batch, and pictures of a batch.
TASKS, PICTURES = (2, 4) if TINY else (8, 4)
SIDES = [64] if TINY else [512, 1024]

# Mixed traffic: every ratio as often as the others, with no reference, one or two, of several accounts.
RATIOS = [
    (1024, 1024), (1280, 720), (720, 1280), (1152, 864), (864, 1152), (1248, 832), (832, 1248),
    (1120, 896), (896, 1120), (1440, 720), (720, 1440), (1568, 672), (672, 1568),
]  # fmt: skip
ACCOUNTS, MIXED = (2, 4) if TINY else (4, 39)
MIXES = [(RATIOS[task % len(RATIOS)], task % 3) for task in range(MIXED)]

# The fields in which the configurations of real models differ from those of the tests.
UNET = {"block_out_channels": [320, 640, 1280, 1280], "cross_attention_dim": 768, "attention_head_dim": 8}
VAE = {"block_out_channels": [128, 256, 512, 512], "layers_per_block": 2, "norm_num_groups": 32}
CLIP = {"hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12}
QWEN = {
    "hidden_size": 2560,
    "intermediate_size": 9728,
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "layer_types": ["full_attention"] * 36,
}
KLEIN = {
    "in_channels": 128,
    "num_layers": 5,
    "num_single_layers": 20,
    "num_attention_heads": 24,
    "attention_head_dim": 128,
    "axes_dims_rope": [32, 32, 32, 32],
    "joint_attention_dim": 7680,
}
XL = {
    "block_out_channels": [320, 640, 1280],
    "transformer_layers_per_block": [1, 2, 10],
    "attention_head_dim": [5, 10, 20],
    "cross_attention_dim": 2048,
    "addition_time_embed_dim": 256,
    "projection_class_embeddings_input_dim": 2816,
    "norm_num_groups": 32,
}
BIG_CLIP = {
    "hidden_size": 1280,
    "intermediate_size": 5120,
    "num_hidden_layers": 32,
    "num_attention_heads": 20,
    "projection_dim": 1280,
}
MODELS = {
    "sdxl": {
        "dtype": "float16",
        "steps": 30,
        "unet": XL,
        "vae": VAE,
        "text_encoder": CLIP,
        "text_encoder_2": BIG_CLIP,
    },
    "sd15": {
        "dtype": "float16",
        "steps": 25,
        "unet": {**UNET, "layers_per_block": 2, "norm_num_groups": 32},
        "vae": VAE,
        "text_encoder": CLIP,
    },
    "klein": {
        "dtype": "bfloat16",
        "steps": 4,
        "transformer": KLEIN,
        "vae": {**VAE, "latent_channels": 32, "decoder_block_out_channels": None},
        "text_encoder": QWEN,
    },
}
if os.environ.get("MODELS"):
    MODELS = {name: MODELS[name] for name in os.environ["MODELS"].split(",")}


def say(what, engine, value, unit):
    print(f"{what}\t{engine}\t{value:.4f}\t{unit}", flush=True)


def make(folder):
    """Models of true shapes with random weights, in the type that a GPU computes with."""
    for name, changes in MODELS.items():
        to = folder / name
        if (to / "complete").exists():
            continue
        shutil.rmtree(to, ignore_errors=True)
        shutil.copytree(FIXTURES / name, to)
        if not TINY:
            for part, fields in changes.items():
                if part not in ("dtype", "steps"):
                    write_part(to / part, fields, changes["dtype"])
        (to / "complete").touch()


def write_part(path, fields, dtype):
    import diffusers
    import torch
    import transformers

    config = json.loads((path / "config.json").read_text()) | fields
    for old in path.glob("*.safetensors*"):
        old.unlink()
    torch.set_default_dtype(getattr(torch, dtype))
    # Billions of numbers are drawn twice, which a processor takes minutes for.
    with torch.device(DEVICE):
        if "_class_name" in config:
            model = getattr(diffusers, config["_class_name"]).from_config(config)
        else:
            kind = getattr(transformers, config["architectures"][0])
            model = kind(kind.config_class(**config))
    torch.set_default_dtype(torch.float32)
    table = torch.randn(1 << 20, generator=torch.Generator().manual_seed(1)).to(DEVICE, getattr(torch, dtype))
    with torch.no_grad():
        for tensor in model.parameters():
            if tensor.dim() > 1:
                count = tensor.numel()
                numbers = table.repeat(-(-count // table.numel()))[:count] / math.sqrt(tensor[0].numel())
                tensor.copy_(numbers.view(tensor.shape))
    model.save_pretrained(path)


def reference():
    """A PNG of slow changes, 512x512."""
    rows = b"".join(b"\0" + bytes((x + y) // 4 & 255 for x in range(512) for _ in range(3)) for y in range(512))
    chunk = lambda kind, data: struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", 512, 512, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


class Memory:
    """The most memory of a process, of the machine and of the GPU, in GiB, and how busy the GPU is, looked at four times a
    second."""

    def __init__(self, pid):
        self.pid, self.host, self.gpu, self.busy, self.done = pid, 0.0, 0.0, [], threading.Event()
        self.thread = threading.Thread(target=self.watch)
        self.thread.start()

    def watch(self):
        while not self.done.wait(0.25):
            status = Path(f"/proc/{self.pid}/status").read_text()
            found = [line.split()[1] for line in status.splitlines() if line.startswith("VmHWM:")]
            self.host = int(found[0]) / (1 << 20) if found else self.host
            if DEVICE == "cuda":
                query = ["nvidia-smi", "--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits"]
                for line in subprocess.run(query, capture_output=True, text=True).stdout.splitlines():
                    pid, mebibytes = line.split(", ")
                    if pid == str(self.pid) and mebibytes.isdigit():
                        self.gpu = max(self.gpu, int(mebibytes) / 1024)
                query = ["nvidia-smi", "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits"]
                busy = subprocess.run(query, capture_output=True, text=True).stdout.split()
                self.busy += [int(share) for share in busy[:1] if share.isdigit()]

    def end(self, what, engine):
        self.done.set()
        self.thread.join()
        say(what, engine, self.host, "GiB of the machine")
        if DEVICE == "cuda":
            say(what, engine, self.gpu, "GiB of the GPU")
            say(what, engine, sum(self.busy) / max(len(self.busy), 1), "% of the time busy")


class Server:
    """`tintype serve` with one model, at one size or at any, and at most so many small pictures in a batch."""

    def __init__(self, program, data, model, side, batch, accounts=1):
        runtime = "onnxruntime:cuda" if DEVICE == "cuda" else "onnxruntime"
        flags = ["--data", data, "--listen", "127.0.0.1:0", "--model", model, "--engine-batch", str(batch)]
        flags += ["--engine-steps", str(MODELS[model.name]["steps"])]
        flags += ["--engine-sizes", f"{side}x{side}"] if side else []
        limits = ["--submit-rate", "0", "--read-rate", "0", "--max-unfinished", "0"]
        command = [program, "serve", "--engine", "diffusion", "--engine-runtime", runtime, *flags, *limits]
        self.process = subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE, text=True)
        self.url = ""
        for line in self.process.stdout:
            words = line.split()
            self.url = next((word.rstrip("/") for word in words if word.startswith("http://127.0.0.1:")), self.url)
            if line == "Ready.\n":
                break
        self.url = "/".join(self.url.split("/")[:3])
        self.keys = [self.made_key(str(program), data, f"bench {model.name} {side} {time.time()}") for _ in range(accounts)]
        self.key = self.keys[0]

    def made_key(self, program, data, name):
        """A key of a new account."""
        common = ["--data", str(data), "--json"]
        account = ["account", "create", name, "--credits", "1000"]
        made = json.loads(subprocess.run([program, *account, *common], capture_output=True, check=True).stdout)
        key = [program, "key", "create", "--account", made["id"], *common]
        return json.loads(subprocess.run(key, capture_output=True, check=True).stdout)["key"]

    def picture(self, key, size, references):
        """One picture by OpenAI's Images API, whose edits take references."""
        boundary, field = "a5e1c3", 'Content-Disposition: form-data; name="{}"{}\r\n\r\n'
        fields = {"prompt": PROMPT, "size": f"{size[0]}x{size[1]}"}
        headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
        path, body = "/v1/images/generations", json.dumps(fields).encode()
        if references:
            path, headers["Content-Type"] = "/v1/images/edits", f"multipart/form-data; boundary={boundary}"
            parts = [(field.format(name, "").encode(), text.encode()) for name, text in fields.items()]
            parts += [(field.format("image[]", '; filename="a.png"').encode(), file) for file in references]
            lines = [b"--%s\r\n%s%s\r\n" % (boundary.encode(), head, value) for head, value in parts]
            body = b"".join(lines) + f"--{boundary}--\r\n".encode()
        with urllib.request.urlopen(urllib.request.Request(self.url + path, body, headers)) as answer:
            return json.load(answer)["data"]

    def mixed(self):
        """Pictures per second of mixed traffic, all at once."""
        files, pool = [reference()] * 2, ThreadPoolExecutor(len(MIXES))
        begin = time.monotonic()
        asked = [
            pool.submit(self.picture, self.keys[task % len(self.keys)], size, files[:references])
            for task, (size, references) in enumerate(MIXES)
        ]
        for answer in asked:
            answer.result()
        return len(MIXES) / (time.monotonic() - begin)

    def ask(self, path, body=None):
        headers = {"Authorization": f"Bearer {self.key}", "Content-Type": "application/json"}
        data = json.dumps(body).encode() if body else None
        with urllib.request.urlopen(urllib.request.Request(self.url + path, data, headers)) as answer:
            return json.load(answer)["data"]

    def render(self, tasks, pictures):
        body = {"prompt": PROMPT, "n": pictures, "aspect_ratio": "1:1"}
        begin = time.monotonic()
        ids = [self.ask("/api/v1/images/generate", body)["task_id"] for _ in range(tasks)]
        for task in ids:
            while (found := self.ask(f"/api/v1/images/task/{task}"))["status"] == "processing":
                time.sleep(0.05)
            if found["status"] != "completed":
                sys.exit(f"a task failed: {found}")
        return tasks * pictures / (time.monotonic() - begin)

    def child(self):
        """The process of the engine."""
        for path in Path("/proc").glob("[0-9]*/status"):
            try:
                status, words = path.read_text(), path.with_name("cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if f"PPid:\t{self.process.pid}\n" in status and b"render-diffusion" in words:
                return int(path.parent.name)
        sys.exit("the engine has no process")

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait()


def tintype_times(folder, program):
    for name in MODELS:
        for side in SIDES:
            # The pictures of different tasks, one at a time and in batches.
            for batch, label in [(1, "tintype"), (PICTURES, f"tintype x{PICTURES}")]:
                server = Server(program, folder / "data", folder / name, side, batch)
                try:
                    # A device loads the model once, and finds kernels for one picture and for a batch.
                    server.render(1, 1)
                    server.render(1, PICTURES)
                    memory = Memory(server.child())
                    rate = server.render(TASKS * PICTURES, 1)
                    memory.end(f"{name} {side}", label)
                finally:
                    server.stop()
                say(f"{name} {side}", label, rate, "pictures/s")
    if "klein" in MODELS:
        server = Server(program, folder / "data", folder / "klein", None, PICTURES, ACCOUNTS)
        try:
            server.render(1, 1)
            server.picture(server.key, RATIOS[0], [reference()])
            memory = Memory(server.child())
            rate = server.mixed()
            memory.end("klein mixed", "tintype")
        finally:
            server.stop()
        say("klein mixed", "tintype", rate, "pictures/s")


def torch_times(folder):
    import diffusers
    import torch

    for name, changes in MODELS.items():
        dtype = torch.float32 if DEVICE == "cpu" else getattr(torch, changes["dtype"])
        pipe = diffusers.DiffusionPipeline.from_pretrained(folder / name, torch_dtype=dtype, safety_checker=None)
        pipe.to(DEVICE).set_progress_bar_config(disable=True)
        # As Tintype's defaults.
        steps = {"num_inference_steps": changes["steps"]} | ({} if name == "klein" else {"guidance_scale": 7.5})
        for kind in ["", " compiled"] if DEVICE == "cuda" else [""]:
            if kind:
                core = "transformer" if name == "klein" else "unet"
                setattr(pipe, core, torch.compile(getattr(pipe, core)))
            for side in SIDES:
                work = lambda count: pipe(prompt=PROMPT, height=side, width=side, num_images_per_prompt=count, **steps)
                work(1)
                work(PICTURES)
                memory = Memory(os.getpid())
                # One picture at a time, and four.
                for count, label in [(1, f"diffusers{kind}"), (PICTURES, f"diffusers{kind} x{PICTURES}")]:
                    begin = time.monotonic()
                    for _ in range(TASKS * PICTURES // count):
                        work(count)
                    say(f"{name} {side}", label, TASKS * PICTURES / (time.monotonic() - begin), "pictures/s")
                memory.end(f"{name} {side}", f"diffusers{kind}")
            if name == "klein" and not kind:
                torch_mixed(pipe, steps)
        del pipe


def torch_mixed(pipe, steps):
    """The same mixed traffic, one picture after another, because all of a batch have one size and as many references."""
    import io

    from PIL import Image

    picture = Image.open(io.BytesIO(reference())).convert("RGB")
    work = lambda size, count: pipe(
        prompt=PROMPT, width=size[0] // 16 * 16, height=size[1] // 16 * 16, image=[picture] * count or None, **steps
    )
    work(*MIXES[0])
    begin = time.monotonic()
    for size, references in MIXES:
        work(size, references)
    say("klein mixed", "diffusers", len(MIXES) / (time.monotonic() - begin), "pictures/s")


def report(folder):
    """All numbers, and our speed as a ratio of the others'."""
    found = [line.split("\t") for line in (folder / "times").read_text().splitlines()]
    rates = [(what, engine, float(value)) for what, engine, value, unit in found if unit == "pictures/s"]
    ours = {(what, engine.removeprefix("tintype")): rate for what, engine, rate in rates if "tintype" in engine}
    for what, engine, value, unit in found:
        same = ours.get((what, engine.removeprefix("diffusers").removeprefix(" compiled")))
        others = "tintype" not in engine and unit == "pictures/s" and same
        ratio = f"  ours is {same / float(value):.2f} of it" if others else ""
        print(f"{what:12} {engine:21} {float(value):9.3f} {unit}{ratio}")


def main():
    what, folder = sys.argv[1], Path(sys.argv[2])
    if what == "make":
        make(folder)
    elif what == "tintype":
        tintype_times(folder, sys.argv[3])
    elif what == "torch":
        torch_times(folder)
    elif what == "report":
        report(folder)


if __name__ == "__main__":
    main()
