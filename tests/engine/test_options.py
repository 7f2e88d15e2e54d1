"""The choices that are declared without torch are those of the modules that use them."""

from __future__ import annotations

import inspect
from dataclasses import fields

import normscope
from normscope.capture import ATTENTION_MODES
from normscope.decomposition.feedforward import FF_BIASES
from normscope.engine.options import CHOICES, AnalysisOptions
from normscope.kernels.backend import KERNELS


def test_choices_are_declared_alike() -> None:
    assert CHOICES["attention"] == ATTENTION_MODES
    assert CHOICES["ff_bias"] == FF_BIASES
    assert CHOICES["kernels"] == KERNELS


def test_options_are_the_keywords_of_analyze() -> None:
    for function in (normscope.analyze, normscope.analyze_inputs):
        parameters = inspect.signature(function).parameters
        for field in fields(AnalysisOptions):
            assert parameters[field.name].default == field.default, field.name
