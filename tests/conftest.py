"""Set up before anything imports normscope: shapes checked, no network, one thread a process."""

from __future__ import annotations

import os

os.environ["HF_HUB_OFFLINE"] = "1"  # read once, when huggingface_hub is imported

import torch
from jaxtyping import install_import_hook

torch.set_num_threads(1)
install_import_hook("normscope", "beartype.beartype")
