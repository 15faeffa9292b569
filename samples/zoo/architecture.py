"""Architectures of the zoo, and the forms in which a causal language model is exported."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from samples.building import CACHED, LAYERS, TOKENS, Case, MaskedLogits, WithCache, cache_names, prompt, token_ids

BATCH = 2  #: example batch of models with symbolic dimensions


@dataclass(frozen=True, slots=True)
class Form:
    """The form in which a model is called: on a cache, with symbolic dimensions, with a padding mask as an input; its
    `layers`."""

    cache: bool = False
    dynamic: bool = False
    masked: bool = False
    layers: int = LAYERS


@dataclass(frozen=True, slots=True)
class Architecture:
    """One row of the table. `build` makes the model in a form; `cached` says whether there is one with a cache, and
    `encoder` whether that form lacks an encoder; `attentions`, `mlps`: how many of each the model has without a cache."""

    name: str
    title: str
    shows: str
    build: Callable[[Form], Case]
    attentions: int = LAYERS
    mlps: int = LAYERS
    cached: bool = False
    encoder: bool = False


def causal(model: nn.Module, form: Form, tokens: int = TOKENS) -> Case:
    """A causal language model on a prompt, or on one new token behind a cache of `CACHED`."""
    if form.cache:
        return _on_cache(model, form)
    if not form.masked:
        return prompt(model, tokens)
    batch = BATCH if form.dynamic else 1
    inputs = {
        "input_ids": token_ids(tokens, batch),
        "attention_mask": torch.ones(batch, tokens, dtype=torch.int64),
    }
    axes = {0: torch.export.Dim("batch"), 1: torch.export.Dim("sequence")}
    return Case(MaskedLogits(model), dict(inputs), dynamic=dict.fromkeys(inputs, axes) if form.dynamic else None)


def _on_cache(model: nn.Module, form: Form) -> Case:
    """One new token; the shapes of the caches are what the model itself makes of a prompt."""
    batch = BATCH if form.dynamic else 1
    with torch.no_grad():
        layers = model(input_ids=token_ids(2, batch), use_cache=True).past_key_values.layers
    prompted = [t for layer in layers for t in (layer.keys, layer.values)]
    past = [torch.zeros(batch, t.shape[1], CACHED, t.shape[3]) for t in prompted]
    case = Case(
        WithCache(model),
        {"input_ids": token_ids(1, batch), "past": past},
        ("logits", *cache_names("present", len(layers))),
    )
    if form.masked:
        case.inputs["attention_mask"] = torch.ones(batch, CACHED + 1, dtype=torch.int64)
    if form.dynamic:
        rows, length = torch.export.Dim("batch"), torch.export.Dim("past")
        caches = [{0: rows, 2: length}] * len(past)
        case.dynamic = {"input_ids": {0: rows}, "past": caches, "attention_mask": {0: rows, 1: length + 1}}
    return case
