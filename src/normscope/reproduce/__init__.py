"""The papers' experiments, each by one command: published beside measured.

``data`` has the sequences, ``measure`` runs an experiment over them, ``emnlp2020``, ``emnlp2021``
and ``iclr2024`` know what each paper shows and found, ``report`` writes it.
"""

from normscope.reproduce.exhibits import Exhibit, Finding, Report
from normscope.reproduce.measure import Request
from normscope.reproduce.run import EXPERIMENTS, reproduce

__all__ = ["EXPERIMENTS", "Exhibit", "Finding", "Report", "Request", "reproduce"]
