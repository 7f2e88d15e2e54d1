"""What statistics cost beside the plain forward pass over the same batches: time and memory.

    python benchmarks/statistics.py [--sequences 992] [--length 128] [--batch 16]
                                    [--device cuda] [--model FOLDER] [--output FILE.json]

Every batch is run plainly (the model's own sdpa attention), then measured without and with
alpha_vs_norm, one after the other, so that a busy machine slows all three; the ratio of processor
times is less disturbed by others than that of wall times. Ratios are of sums over all batches, for
each input condition: the masked one serves mixing, the plain one the rest.
"""

from __future__ import annotations

import argparse
import json
import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from normscope.measures.statistics import Measurer, Row, Settings, choose, merge
from normscope.models import load

PLAIN = ["dispersion", "categories", "frequency", "preserve_mix"]
RUNS = {
    "plain condition": PLAIN,
    "masked condition": ["mixing"],
    "plain condition with alpha_vs_norm": [*PLAIN, "alpha_vs_norm"],
}


def sequences(tokenizer: Any, count: int, length: int) -> list[Row]:
    """Random words between the tokenizer's special tokens, a comma or period now and then."""
    draw = np.random.default_rng(0)
    first, last = tokenizer.cls_token_id, tokenizer.sep_token_id
    marks = tokenizer.convert_tokens_to_ids([",", "."])
    rows = []
    for key in range(1, count + 1):  # the sequence numbered 0 is always checked
        ids = draw.integers(2000, len(tokenizer), length)
        ids[draw.integers(1, length - 1, length // 12)] = draw.choice(marks)
        ids[0], ids[length // 2], ids[-1] = first, last, last
        special = np.isin(np.arange(length), (0, length // 2, length - 1))
        types = np.arange(length) > length // 2
        rows.append(Row(key, tuple(ids.tolist()), tuple(map(int, types)), tuple(special.tolist())))
    return rows


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--sequences", type=int, default=992)
    options.add_argument("--length", type=int, default=128)
    options.add_argument("--batch", type=int, default=16)
    options.add_argument("--device", default="cpu")
    options.add_argument("--model", default=None)
    options.add_argument("--output", default=None)
    given = options.parse_args()
    model, tokenizer = load(given.model, device=given.device)
    rows = sequences(tokenizer, given.sequences, given.length)
    settings = Settings()
    chosen = {name: choose(names, settings) for name, names in RUNS.items()}
    measurers = {k: Measurer(model, tokenizer, made, settings) for k, made in chosen.items()}
    states: dict[str, Any] = {name: {} for name in RUNS}
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in ("forward", *RUNS)}

    def timed(name: str, work: Callable[[], Any]) -> Any:
        begun = time.perf_counter(), time.process_time()
        made = work()
        if given.device != "cpu":
            torch.cuda.synchronize()
        times[name].append((time.perf_counter() - begun[0], time.process_time() - begun[1]))
        return made

    batches = [rows[i : i + given.batch] for i in range(0, len(rows), given.batch)]
    for number, batch in enumerate([batches[0], *batches]):  # the first twice: once to warm up
        if number == 1:
            times = {name: [] for name in times}
            states = {name: {} for name in RUNS}
        ids = torch.tensor([row.ids for row in batch], device=given.device)
        types = torch.tensor([row.types for row in batch], device=given.device)
        inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "token_type_ids": types}
        with torch.no_grad():
            timed("forward", lambda inputs=inputs: model(**inputs))
        for name, measurer in measurers.items():
            found = timed(name, lambda m=measurer, b=batch: m.measure(b))
            states[name] = merge(chosen[name], states[name], found)
    forward = np.array(times["forward"])  # batch (wall, processor)
    made: dict[str, Any] = {
        "model": Path(str(model.config._name_or_path)).name,
        "device": given.device,
        "threads": torch.get_num_threads(),
        "sequences": given.sequences,
        "length": given.length,
        "batch": given.batch,
        "forward_seconds": round(float(forward[:, 0].sum()), 3),
        "peak_memory_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
    }
    for name in RUNS:
        spent = np.array(times[name])
        wall, processor = spent.sum(axis=0) / forward.sum(axis=0)
        each = np.quantile(spent[:, 0] / forward[:, 0], [0.1, 0.5, 0.9])
        made[name] = {
            "seconds": round(float(spent[:, 0].sum()), 3),
            "ratio": round(float(wall), 3),
            "ratio_of_processor_time": round(float(processor), 3),
            "ratio_by_batch_p10_p50_p90": [round(float(one), 3) for one in each],
        }
        print(
            f"{name}: {wall:.2f} × the plain forward pass, {processor:.2f} × its processor time; "
            f"by batch {' '.join(f'{one:.2f}' for one in each)}"
        )
    last = states["plain condition with alpha_vs_norm"]["alpha_vs_norm"]
    made["pairs"] = int(last["total"])
    print(f"{made['pairs']:,} pairs of α and ‖f‖; peak memory {made['peak_memory_mb']} MB")
    if given.output:
        Path(given.output).write_text(json.dumps(made, indent=1) + "\n")


if __name__ == "__main__":
    main()
