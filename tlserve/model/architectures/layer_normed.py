"""Decoders with LayerNorm: phi 2, stablelm, starcoder 2, cohere 1 and 2, nemotron."""

from __future__ import annotations

import attrs

from tlserve.model.architectures.facts import ModelFacts
from tlserve.model.architectures.forms import Architecture, GgufForm, HfForm
from tlserve.model.architectures.windows import gguf_one_window, optional_window
from tlserve.model.decoder.record import Activation, Attention, Decoder, parallel, sequential


def phi(facts: ModelFacts) -> Decoder:
    """Attention and an ungated gelu side by side, biases everywhere, a part of each head turns."""
    facts.refuse("qk_layernorm", (False,), "false")
    norm = facts.layer_norm()
    feed_forward = facts.feed_forward(gated=False, activation=Activation.GELU_TANH, bias=True)
    attentions = facts.attentions(qkv_bias=True, output_bias=True)
    return facts.decoder([parallel(a, feed_forward, norm) for a in attentions], norm, head_bias=True)


def stablelm(facts: ModelFacts) -> Decoder:
    """Attention and gated silu, one after the other or side by side; a part of each head turns."""
    facts.refuse("qk_layernorm", (False,), "false")
    norm, feed_forward = facts.layer_norm(), facts.feed_forward()
    side_by_side = facts.flag("use_parallel_residual", default=False, tensor="") or facts.lacks_tensor(
        "ffn_norm.weight"
    )
    attentions = facts.attentions(qkv_bias=facts.flag("use_qkv_bias", default=False, tensor="attn_q.bias"))
    layer = parallel if side_by_side else sequential
    return facts.decoder([layer(a, feed_forward, norm) for a in attentions], norm)


def starcoder2(facts: ModelFacts) -> Decoder:
    """Sequential layers, ungated gelu, biases everywhere, a window."""
    norm = facts.layer_norm("norm_epsilon")
    bias = facts.flag("use_bias", default=True, tensor="ffn_up.bias")
    feed_forward = facts.feed_forward(gated=False, activation=Activation.GELU_TANH, bias=bias)
    windows = facts.windows(optional_window, gguf_one_window)
    attentions = facts.attentions(windows, **facts.biased_attention("use_bias", default=True))
    return facts.decoder([sequential(a, feed_forward, norm) for a in attentions], norm)


def _cohere(facts: ModelFacts, attentions: list[Attention]) -> Decoder:
    norm, feed_forward = facts.layer_norm(bias=False), facts.feed_forward()
    layers = [parallel(a, feed_forward, norm) for a in attentions]
    return facts.decoder(layers, norm, logit_scale=facts.number("logit_scale", "logit_scale", 0.0625))


def cohere(facts: ModelFacts) -> Decoder:
    """Attention and gated silu side by side, scaled logits, in some sizes a norm with its own weight for each head."""
    head_norm = attrs.evolve(facts.layer_norm(bias=False), per_head=True)
    normed = head_norm if facts.flag("use_qk_norm", default=False, tensor="attn_q_norm.weight") else None
    return _cohere(facts, facts.attentions(q_norm=normed, k_norm=normed, **facts.biased_attention()))


def cohere2(facts: ModelFacts) -> Decoder:
    """Cohere in which only the layers with a window turn."""
    windows, local = facts.local(4)
    unrotated = tuple(layer for layer in facts.layers if not local[layer])
    return _cohere(facts, facts.attentions(windows, unrotated, **facts.biased_attention()))


def nemotron(facts: ModelFacts) -> Decoder:
    """Sequential layers, norms stored less one, squares of what is positive, a part of each head turns."""
    norm = facts.layer_norm("norm_eps")
    bias = facts.flag("mlp_bias", default=False, tensor="ffn_up.bias")
    feed_forward = facts.feed_forward(gated=False, activation=Activation.RELU2, bias=bias)
    return facts.decoder(
        [sequential(a, feed_forward, norm) for a in facts.attentions(**facts.biased_attention())], norm
    )


LAYER_NORMED = (
    Architecture(
        describe=phi,
        hf=HfForm(
            model_type="phi",
            model_class="PhiForCausalLM",
            names={
                "norm": "model.final_layernorm",
                "attention.output": "self_attn.dense",
                "ffn.up": "mlp.fc1",
                "ffn.down": "mlp.fc2",
            },
            partial=0.5,
            epsilon=1e-5,
            activations=("gelu_new", "gelu_pytorch_tanh"),
        ),
        gguf=GgufForm(name="phi2", half_split=True),
        models="Phi 1, 1.5 and 2 (1.3B, 2.7B)",
    ),
    Architecture(
        describe=stablelm,
        hf=HfForm(model_type="stablelm", model_class="StableLmForCausalLM", partial=0.25, epsilon=1e-5),
        gguf=GgufForm(name="stablelm", half_split=True),
        models="StableLM 2 (1.6B), Zephyr 3B",
        note="Norms of heads (StableLM 2 12B) are refused.",
    ),
    Architecture(
        describe=starcoder2,
        hf=HfForm(
            model_type="starcoder2",
            model_class="Starcoder2ForCausalLM",
            names={"ffn.up": "mlp.c_fc", "ffn.down": "mlp.c_proj"},
            tied=True,
            epsilon=1e-5,
            activations=("gelu_pytorch_tanh",),
        ),
        gguf=GgufForm(name="starcoder2", half_split=True),
        models="StarCoder 2 (3B, 7B, 15B)",
        note="llama.cpp ignores the window; tlserve follows transformers.",
    ),
    Architecture(
        describe=cohere,
        hf=HfForm(
            model_type="cohere",
            model_class="CohereForCausalLM",
            half_split=False,
            tied=True,
            rope_base=500_000.0,
            epsilon=1e-5,
        ),
        gguf=GgufForm(name="command-r"),
        models="Command R (35B), Aya 23",
    ),
    Architecture(
        describe=cohere2,
        hf=HfForm(
            model_type="cohere2",
            model_class="Cohere2ForCausalLM",
            half_split=False,
            tied=True,
            epsilon=1e-5,
        ),
        gguf=GgufForm(name="cohere2", local_windows=True),
        models="Command R7B",
    ),
    Architecture(
        describe=nemotron,
        hf=HfForm(
            model_type="nemotron",
            model_class="NemotronForCausalLM",
            less_one=True,
            partial=0.5,
            epsilon=1e-5,
            activations=("relu2",),
        ),
        gguf=GgufForm(name="nemotron", half_split=True),
        models="Minitron (4B, 8B), Nemotron 4",
    ),
)
