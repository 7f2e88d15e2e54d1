"""Train a translation model on a packed corpus, and watch its alignments while it learns.

    python -m experiments.nmt.train --corpus europarl.pack --direction de-en \
        --recipe released --minutes 60 --output run

With batches of many shapes, set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from tqdm import tqdm

from experiments.nmt.batches import Corpus
from experiments.nmt.clean import pair_scores
from experiments.nmt.export import read_parts, write_parts, write_whole
from experiments.nmt.gold import Gold, best_layer, error_rates, read_gold
from experiments.nmt.model import Shape, Translator, translation_loss
from experiments.nmt.pack import Pack, load
from experiments.nmt.recipes import RECIPES, Recipe
from experiments.nmt.translate import bleu, translate

_STARTED = time.monotonic()


def learning_rate(recipe: Recipe, step: int, done: float) -> float:
    """The rate of update ``step`` (from 1), ``done`` of the whole run being over."""
    rise_and_fall = min(step / recipe.warmup, math.sqrt(recipe.warmup / step))
    cooling = min(1.0, max(0.0, (1 - done) / recipe.cooldown)) if recipe.cooldown else 1.0
    return recipe.rate * rise_and_fall * cooling


class Training:
    """All that changes while a model is trained, and is saved to go on from."""

    def __init__(self, pack: Pack, recipe: Recipe, seed: int, device: torch.device) -> None:
        torch.manual_seed(seed)
        self.recipe, self.seed, self.device = recipe, seed, device
        self.corpus = Corpus(*pack.train, device)
        self.valid = Corpus(*pack.valid, device)
        names = ("hidden", "heads", "feedforward", "encoder_layers", "decoder_layers", "dropout")
        options = {name: getattr(recipe, name) for name in (*names, "tied")}
        sizes = [tokenizer.get_vocab_size() for tokenizer in pack.tokenizers]
        self.model = Translator(Shape(sizes[0], sizes[1], **options)).to(device)
        if device.type == "cuda":
            self.model.precision = torch.bfloat16
        self.parameters = list(self.model.parameters())
        self.averages = [parameter.detach().clone() for parameter in self.parameters]
        self.optimizer = torch.optim.AdamW(
            self.parameters,
            lr=0.0,
            betas=(0.9, 0.98),
            weight_decay=recipe.weight_decay,
            fused=device.type == "cuda",
        )
        self.loss = translation_loss
        self.step = self.epoch = self.position = self.seen = 0
        self.seconds = 0.0  # of training, in earlier runs too

    def begin_with(self, run: Path) -> None:
        """Take the weights of another run's parts; the schedule begins anew."""
        model, _, _ = read_parts(run)
        if model.shape != self.model.shape:
            raise ValueError(f"{run} has the shape {model.shape}, not {self.model.shape}")
        self.model.load_state_dict(model.state_dict())
        for average, parameter in zip(self.averages, self.parameters, strict=True):
            average.copy_(parameter.detach())

    def compile(self) -> None:
        """Compile layer by layer: two small graphs serve all lengths and all layers."""
        from torch.fx.experimental import _config

        _config.use_duck_shape = False  # two lengths that agree once need not do so again
        for layer in (*self.model.encoder, *self.model.decoder):
            layer.compile(dynamic=True)
        self.loss = torch.compile(translation_loss, dynamic=True)

    def batches(self) -> Iterator[NDArray[np.int64]]:
        """Batches without end, from where training stands."""
        while True:
            plan = self.corpus.plan(self.recipe.tokens, (self.seed, self.epoch))
            if not plan:
                raise ValueError("the corpus has fewer pairs than make a batch")
            while self.position < len(plan):
                self.position += 1
                yield plan[self.position - 1]
            self.epoch, self.position = self.epoch + 1, 0

    def update(self, chosen: NDArray[np.int64], done: float) -> Tensor:
        """One step on one batch; its loss, not smoothed, per token."""
        self.step += 1
        rate = learning_rate(self.recipe, self.step, done)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        batch = self.corpus.batch(chosen)
        count = int(self.corpus.lengths[1][chosen].sum()) + len(chosen)
        self.seen += count
        self.model.train()
        hidden = self.model.decode(batch.target, self.model.encode(batch.source))
        total, plain = self.loss(
            hidden, self.model.output.weight, batch.labels, self.recipe.smoothing
        )
        (total / count).backward()
        if self.recipe.clip:
            torch.nn.utils.clip_grad_norm_(self.parameters, self.recipe.clip)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        if self.step % 4 == 0:  # the average of every fourth, which is as good and cheaper
            # It begins short, so that the first steps are soon forgotten.
            weight = max(1 - self.recipe.average**4, 4 / (10 + self.step))
            torch._foreach_lerp_(self.averages, [p.detach() for p in self.parameters], weight)
        return plain.detach() / count

    @torch.no_grad()
    def validate(self) -> float:
        """Loss per token on the validation pairs, in nats."""
        self.model.eval()
        total, count = torch.zeros((), device=self.device), 0
        for chosen in self.valid.plan(1 << 16, None):
            batch = self.valid.batch(chosen)
            hidden = self.model.decode(batch.target, self.model.encode(batch.source))
            total += translation_loss(hidden, self.model.output.weight, batch.labels, 0.0)[0]
            count += int(self.valid.lengths[1][chosen].sum()) + len(chosen)
        return float(total) / count

    def swap(self) -> None:
        """Exchange the weights and their moving average."""
        for parameter, average in zip(self.parameters, self.averages, strict=True):
            kept = parameter.detach().clone()
            parameter.data.copy_(average)
            average.copy_(kept)

    def save(self, path: Path) -> None:
        """A checkpoint; the file is there in whole or not at all."""
        cuda = torch.cuda.get_rng_state() if self.device.type == "cuda" else None
        state = {
            "model": self.model.state_dict(),
            "averages": self.averages,
            "optimizer": self.optimizer.state_dict(),
            "random": (torch.get_rng_state(), cuda),
            "recipe": asdict(self.recipe),
            "seed": self.seed,
            "numbers": (self.step, self.epoch, self.position, self.seen, self.seconds),
        }
        part = path.with_name(path.name + ".part")
        torch.save(state, part)
        part.replace(path)

    def resume(self, path: Path) -> None:
        """Go on from a checkpoint."""
        state = torch.load(path, map_location="cpu", weights_only=True)
        if state["recipe"] != asdict(self.recipe) or state["seed"] != self.seed:
            raise ValueError(f"{path} was made by another recipe or seed")
        self.model.load_state_dict(state["model"])
        for average, saved in zip(self.averages, state["averages"], strict=True):
            average.copy_(saved)
        self.optimizer.load_state_dict(state["optimizer"])
        torch.set_rng_state(state["random"][0])
        if self.device.type == "cuda":
            torch.cuda.set_rng_state(state["random"][1])
        self.step, self.epoch, self.position, self.seen, self.seconds = state["numbers"]


class Run:
    """One run's folder: the log, the checkpoint, the parts."""

    def __init__(self, pack: Pack, training: Training, options: argparse.Namespace) -> None:
        self.pack, self.training, self.options = pack, training, options
        self.output: Path = options.output
        self.output.mkdir(parents=True, exist_ok=True)
        self.gold: Gold | None = None
        if options.gold:
            source, target, links = options.gold
            turned = options.gold_turned
            self.gold = read_gold(source, target, links, pack.tokenizers, turned=turned)
            self.gold = self.gold.to(training.device)

    def log(self, **entry: object) -> None:
        """A line of the log."""
        with (self.output / "log.jsonl").open("a", encoding="utf-8") as log:
            log.write(json.dumps(entry) + "\n")

    def evaluate(self, kind: str) -> dict[str, Any]:
        """Validation loss and alignment error, logged and printed."""
        entry: dict[str, Any] = {"kind": kind, "step": self.training.step}
        entry["valid_loss"] = round(self.training.validate(), 4)
        text = [f"{kind} step {self.training.step} loss {entry['valid_loss']}"]
        if self.gold is not None:
            entry["aer"] = error_rates(self.training.model, self.gold)
            for key in ("weights_awi", "norms_awi", "weights_awo", "norms_awo"):
                text.append(f"{key} {[row[-1] for row in entry['aer'][key]]}")
            heads = min(
                (x, n + 1, h + 1)
                for n, row in enumerate(entry["aer"]["norms_awi"])
                for h, x in enumerate(row[:-1])
            )
            text.append(f"best layer {best_layer(entry['aer'], 'norms_awi')} best head {heads}")
        self.log(**entry)
        print("  ".join(text), flush=True)
        return entry

    def export(self, **about: object) -> None:
        """Write the parts of the model as it is now."""
        write_parts(
            self.training.model,
            self.pack.tokenizers,
            self.output,
            precision=self.options.export,
            about={
                "languages": self.pack.languages,
                "recipe": self.options.recipe,
                "settings": asdict(self.training.recipe),
                "seed": self.training.seed,
                "step": self.training.step,
                "epoch": self.training.epoch,
                "target_tokens": self.training.seen,
                "pairs": len(self.training.corpus),
                "seconds": round(self.training.seconds, 1),
                "device": (
                    torch.cuda.get_device_name()
                    if self.training.device.type == "cuda"
                    else self.training.device.type
                ),
                "torch": torch.__version__,
                **about,
            },
        )


def run_training(pack: Pack, training: Training, options: argparse.Namespace) -> dict[str, Any]:
    """Train until the time or the steps are over, then choose weights, translate and export."""
    run = Run(pack, training, options)
    checkpoint = options.checkpoint or options.output / "checkpoint.pt"
    earlier = 0.0
    if options.resume and checkpoint.exists():
        training.resume(checkpoint)
        earlier = training.seconds
    # The clock starts with the process: reading the corpus and compiling are paid for too.
    clock = _STARTED if options.minutes and not earlier else time.monotonic()
    limit = options.minutes * 60 if options.minutes else math.inf
    steps = options.steps or math.inf
    training.seconds = earlier + time.monotonic() - clock
    evaluated, last, last_seen = training.seconds, time.monotonic(), training.seen
    losses: list[Tensor] = []
    if not training.step:
        run.evaluate("start")  # and what fails here need not fail after an hour
    bar = tqdm(total=options.steps, initial=training.step, disable=None, unit="step")
    for chosen in training.batches():
        done = max(training.seconds / limit, training.step / steps)
        if done >= 1 or training.step >= (options.stop_at or math.inf):
            training.position -= 1  # this batch is still to come
            break
        losses.append(training.update(chosen, done))
        training.seconds = earlier + time.monotonic() - clock
        bar.update()
        if training.step % options.log_every == 0:
            loss = float(torch.stack(losses).mean())
            now = time.monotonic()
            speed = (training.seen - last_seen) / (now - last)
            rate = training.optimizer.param_groups[0]["lr"]
            run.log(
                kind="train",
                step=training.step,
                epoch=training.epoch,
                loss=round(loss, 4),
                rate=rate,
                seconds=round(training.seconds, 1),
                tokens_per_second=round(speed),
            )
            bar.set_postfix(loss=f"{loss:.3f}", rate=f"{rate:.1e}", tokens=f"{speed:.0f}/s")
            if not math.isfinite(loss):
                raise FloatingPointError(f"the loss is {loss} at step {training.step}")
            if bar.disable and training.step % (10 * options.log_every) == 0:
                print(
                    f"step {training.step} epoch {training.epoch} loss {loss:.3f} "
                    f"{training.seconds:.0f} s {speed:.0f} tokens/s",
                    flush=True,
                )
            losses, last, last_seen = [], now, training.seen
        if training.seconds - evaluated > options.evaluate_every * 60:
            entry = run.evaluate("now")
            run.export(valid_loss=entry["valid_loss"])
            if options.checkpoint_every:
                training.save(checkpoint)
            training.seconds = earlier + time.monotonic() - clock
            evaluated, last, last_seen = training.seconds, time.monotonic(), training.seen
    bar.close()
    if options.checkpoint_every:
        training.save(checkpoint)
    result = run.evaluate("final")
    training.swap()
    averaged = run.evaluate("averaged")
    if averaged["valid_loss"] < result["valid_loss"]:
        result = averaged
    else:
        training.swap()
    run.export(valid_loss=result["valid_loss"], weights=result["kind"], aer=result.get("aer"))
    hypotheses = translate(training.model, training.valid, pack.tokenizers[1])
    write_whole(options.output / "hypotheses.txt", ("\n".join(hypotheses) + "\n").encode())
    score = bleu(hypotheses, pack.valid_text[1])
    result["bleu"], result["bleu_signature"] = score or (None, None)
    for line in hypotheses[:3]:
        print("  ", line)
    print(
        f"BLEU {result['bleu']}  chosen: {result['kind']}  step {training.step} "
        f"epoch {training.epoch} {time.monotonic() - _STARTED:.0f} s in all",
        flush=True,
    )
    run.log(**{**result, "kind": "result", "weights": result["kind"], "seconds": training.seconds})
    return result


def smoke(training: Training, steps: int = 30) -> None:
    """A few steps, timed: is everything in place?"""
    start = time.monotonic()
    times = []
    for chosen, _ in zip(training.batches(), range(steps), strict=False):
        before = time.monotonic()
        loss = float(training.update(chosen, 0.0))
        times.append(time.monotonic() - before)
    print(
        f"{steps} steps in {time.monotonic() - start:.1f} s, the first {times[0]:.1f} s, median "
        f"of the last half {1000 * float(np.median(times[steps // 2 :])):.1f} ms, loss {loss:.2f}"
    )
    if training.device.type == "cuda":
        print(f"{torch.cuda.max_memory_allocated() / 2**30:.1f} GiB")


def without_worst(pack: Pack, share: float, device: torch.device) -> Pack:
    """The corpus without this share of its pairs, those that look least like translations."""
    start = time.monotonic()
    one, other = pack.train
    sizes = pack.tokenizers[0].get_vocab_size(), pack.tokenizers[1].get_vocab_size()
    cells = 1 << (26 if device.type == "cuda" else 22)
    scores = pair_scores(one, other, sizes, device=device, cells=cells)
    kept = np.flatnonzero(scores >= np.quantile(scores, share))
    for name, place in (("worst", 0.01), ("left out", share), ("median", 0.5)):
        n = int(np.argsort(scores)[int(place * (len(scores) - 1))])
        texts = [
            tokenizer.decode(side.ids[side.starts()[n] :][: side.lengths[n]].tolist())
            for tokenizer, side in zip(pack.tokenizers, pack.train, strict=True)
        ]
        print(f"{name} pairs score {scores[n]:.2f}: {texts[0]} | {texts[1]}")
    print(f"{len(kept)} of {len(one)} pairs kept, {time.monotonic() - start:.1f} s", flush=True)
    return replace(pack, train=(one.select(kept), other.select(kept)))


def parser() -> argparse.ArgumentParser:
    result = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    add = result.add_argument
    add("--corpus", type=Path, required=True, help="what prepare wrote")
    add("--direction", default="de-en", help="source and target language")
    add("--recipe", choices=RECIPES, default="released")
    add("--output", type=Path, required=True, help="folder for the log and the model's parts")
    add("--minutes", type=float, help="stop after so long, counted from the start of the program")
    add("--steps", type=int, help="stop after so many updates")
    add("--stop-at", type=int, help="break off at this update, to go on later with --resume")
    add("--seed", type=int, default=1)
    add("--tokens", type=int, help="tokens of a batch, in place of the recipe's")
    add("--rate", type=float, help="peak learning rate, in place of the recipe's")
    add("--warmup", type=int, help="updates of warm-up, in place of the recipe's")
    add(
        "--leave-out",
        type=float,
        default=0.0,
        metavar="SHARE",
        help="leave out this share of the pairs, those that look least like translations",
    )
    add(
        "--gold",
        type=Path,
        nargs=3,
        metavar=("SOURCE", "TARGET", "LINKS"),
        help="tokenised text and links s-t/spt to measure alignment error on",
    )
    add("--gold-turned", action="store_true", help="the links name the target word first")
    add("--evaluate-every", type=float, default=2.0, help="minutes")
    add("--log-every", type=int, default=50, help="updates")
    add("--checkpoint", type=Path, help="file; checkpoint.pt in the output folder by default")
    add("--no-checkpoint", dest="checkpoint_every", action="store_false")
    add("--resume", action="store_true", help="go on from the checkpoint if there is one")
    add("--export", choices=["int8", "float16"], default="float16", help="precision of the parts")
    add("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    add("--no-compile", dest="compile", action="store_false")
    add("--smoke", action="store_true", help="time a few steps and stop")
    return result


def main(arguments: list[str] | None = None) -> None:
    """The command line."""
    options = parser().parse_args(arguments)
    if not (options.minutes or options.steps or options.smoke):
        sys.exit("train: give --minutes or --steps")
    recipe = RECIPES[options.recipe]
    for name in ("tokens", "rate", "warmup"):
        if getattr(options, name) is not None:
            recipe = replace(recipe, **{name: getattr(options, name)})
    device = torch.device(options.device)
    if device.type == "cuda":
        # cuDNN's attention plans anew for every shape, and here every batch has its own.
        torch.backends.cuda.enable_cudnn_sdp(False)
    pack = load(options.corpus).direction(options.direction)
    if options.leave_out:
        pack = without_worst(pack, options.leave_out, device)
    training = Training(pack, recipe, options.seed, device)
    number = sum(parameter.numel() for parameter in training.parameters)
    print(
        f"{options.direction} {options.recipe}: {len(training.corpus)} pairs, {number / 1e6:.1f}M "
        f"parameters, {time.monotonic() - _STARTED:.1f} s to read",
        flush=True,
    )
    if options.begin_with:
        training.begin_with(options.begin_with)
    if options.compile and device.type == "cuda":
        training.compile()
    if options.smoke:
        smoke(training)
    else:
        run_training(pack, training, options)


if __name__ == "__main__":
    main()
