"""Parameters of well-known models go where a person would put them."""

from __future__ import annotations

import re
from collections.abc import Iterable

import pytest
import torch

from flashback_core.errors import SchemaError
from flashback_core.groups import ParameterInfo, clean_name, group_parameters
from flashback_core.schema import BODY_GROUPS, TRANSFORMER_GROUPS


def _infos(names: Iterable[str]) -> list[ParameterInfo]:
    return [ParameterInfo(name=n, shape=(2, 2)) for n in names]


def _grouped(names: Iterable[str]) -> dict[str, set[str]]:
    grouping = group_parameters(_infos(names))
    out: dict[str, set[str]] = {g: set() for g in grouping.groups}
    for name, group in grouping.of.items():
        out[group].add(name)
    return {g: members for g, members in out.items() if members}


TRANSFORMERS = {
    "nanoGPT": {
        "embed": ["transformer.wte.weight", "transformer.wpe.weight"],
        "attn_qkv": ["transformer.h.0.attn.c_attn.weight", "transformer.h.0.attn.c_attn.bias"],
        "attn_out": ["transformer.h.0.attn.c_proj.weight"],
        "mlp_in": ["transformer.h.0.mlp.c_fc.weight"],
        "mlp_out": ["transformer.h.0.mlp.c_proj.weight"],
        "norm": ["transformer.h.0.ln_1.weight", "transformer.ln_f.weight"],
        "head": ["lm_head.weight"],
    },
    "Llama": {
        "embed": ["model.embed_tokens.weight"],
        "attn_qkv": [f"model.layers.0.self_attn.{x}_proj.weight" for x in "qkv"],
        "attn_out": ["model.layers.0.self_attn.o_proj.weight"],
        "mlp_in": ["model.layers.0.mlp.gate_proj.weight", "model.layers.0.mlp.up_proj.weight"],
        "mlp_out": ["model.layers.0.mlp.down_proj.weight"],
        "norm": ["model.layers.0.input_layernorm.weight", "model.norm.weight"],
        "head": ["lm_head.weight"],
    },
    "BERT": {
        "embed": ["bert.embeddings.word_embeddings.weight"],
        "attn_qkv": [f"bert.encoder.layer.3.attention.self.{x}.weight"
                     for x in ("query", "key", "value")],
        "attn_out": ["bert.encoder.layer.3.attention.output.dense.weight"],
        "mlp_in": ["bert.encoder.layer.3.intermediate.dense.weight"],
        "mlp_out": ["bert.encoder.layer.3.output.dense.weight"],
        "norm": ["bert.embeddings.LayerNorm.weight",
                 "bert.encoder.layer.3.attention.output.LayerNorm.weight"],
        "head": ["cls.predictions.transform.dense.weight", "cls.predictions.bias"],
        "other": ["bert.pooler.dense.weight"],
    },
    "ViT": {
        "embed": ["vit.embeddings.cls_token", "vit.embeddings.position_embeddings",
                  "vit.embeddings.patch_embeddings.projection.weight"],
        "attn_qkv": ["vit.encoder.layer.0.attention.attention.query.weight"],
        "attn_out": ["vit.encoder.layer.0.attention.output.dense.weight"],
        "mlp_in": ["vit.encoder.layer.0.intermediate.dense.weight"],
        "mlp_out": ["vit.encoder.layer.0.output.dense.weight"],
        "norm": ["vit.encoder.layer.0.layernorm_before.weight", "vit.layernorm.weight"],
        "head": ["classifier.weight"],
    },
    "T5": {
        "embed": ["shared.weight"],
        "attn_qkv": ["encoder.block.0.layer.0.SelfAttention.q.weight"],
        "attn_out": ["encoder.block.0.layer.0.SelfAttention.o.weight"],
        "mlp_in": ["encoder.block.0.layer.1.DenseReluDense.wi_0.weight"],
        "mlp_out": ["encoder.block.0.layer.1.DenseReluDense.wo.weight"],
        "norm": ["encoder.final_layer_norm.weight"],
    },
    "torch": {
        "attn_qkv": ["layers.0.self_attn.in_proj_weight", "layers.0.self_attn.in_proj_bias"],
        "attn_out": ["layers.0.self_attn.out_proj.weight"],
        "mlp_in": ["layers.0.linear1.weight"],
        "mlp_out": ["layers.0.linear2.weight"],
        "norm": ["layers.0.norm1.weight"],
    },
    "Lightning's demo": {
        "embed": ["model.embedding.weight"],
        "attn_qkv": ["model.encoder.layers.0.self_attn.in_proj_weight"],
        "mlp_in": ["model.encoder.layers.0.linear1.weight"],
        "head": ["model.decoder.weight", "model.decoder.bias"],
    },
}  # fmt: skip


@pytest.mark.parametrize("family", TRANSFORMERS)
def test_transformers(family: str) -> None:
    """Names of nanoGPT, Hugging Face and torch transformers find their role."""
    expected = {g: set(names) for g, names in TRANSFORMERS[family].items()}
    assert _grouped(n for names in expected.values() for n in names) == expected


def test_transformers_of_the_real_library() -> None:
    """Real Hugging Face models leave nothing that has a role in `other`."""
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2,
             "intermediate_size": 32}  # fmt: skip
    with torch.device("meta"):
        models = [
            transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, vocab_size=64,
                                          bos_token_id=1, eos_token_id=2)),
            transformers.BertForMaskedLM(transformers.BertConfig(**sizes, vocab_size=64)),
            transformers.ViTForImageClassification(transformers.ViTConfig(**sizes)),
        ]  # fmt: skip
    for model in models:
        grouping = group_parameters(_infos(n for n, _ in model.named_parameters()))
        assert grouping.groups == TRANSFORMER_GROUPS
        others = [n for n, g in grouping.of.items() if g == "other" and "pooler" not in n]
        assert others == []


def _resnet18() -> list[ParameterInfo]:
    """Torchvision's names, shapes left out."""
    rows = [("conv1.weight", "Conv2d"), ("bn1.weight", "BatchNorm2d")]
    for stage in range(1, 5):
        for block in range(2):
            for i in (1, 2):
                rows += [(f"layer{stage}.{block}.conv{i}.weight", "Conv2d"),
                         (f"layer{stage}.{block}.bn{i}.weight", "BatchNorm2d")]  # fmt: skip
        if stage > 1:
            rows += [(f"layer{stage}.0.downsample.0.weight", "Conv2d"),
                     (f"layer{stage}.0.downsample.1.weight", "BatchNorm2d")]  # fmt: skip
    rows += [("fc.weight", "Linear"), ("fc.bias", "Linear")]
    return [ParameterInfo(name=n, module=m) for n, m in rows]


def test_resnet_by_depth() -> None:
    """Stages become body_1 … body_4; batch norms, also in shortcuts, are norms; fc is the head."""
    of = group_parameters(_resnet18()).of
    assert of["conv1.weight"] == "stem"
    assert of["fc.bias"] == "head"
    assert of["layer2.0.downsample.1.weight"] == "norm"
    for name, group in of.items():
        if (stage := re.match(r"layer(\d).*(conv|downsample\.0)", name)) is not None:
            assert group == f"body_{stage[1]}"


def test_without_attention_there_are_eight_groups_too() -> None:
    """A plain perceptron has the eight groups by depth, some of them empty."""
    grouping = group_parameters(_infos(["0.weight", "2.weight", "4.weight"]))
    assert grouping.groups == BODY_GROUPS
    assert grouping.of == {"0.weight": "stem", "2.weight": "body_1", "4.weight": "head"}


@pytest.mark.parametrize("n", [1, 2])
def test_tiny_models(n: int) -> None:
    """A model of one or two modules is grouped, too."""
    of = group_parameters(_infos([f"{i}.weight" for i in range(n)])).of
    assert list(of.values()) == [["head"], ["stem", "head"]][n - 1]


def test_wrappers_do_not_show() -> None:
    """DDP, torch.compile and FSDP put prefixes into names; they are taken out."""
    assert clean_name("module._orig_mod.wte.weight") == "wte.weight"
    assert clean_name("_fsdp_wrapped_module.h.0.weight") == "h.0.weight"


def test_own_groups() -> None:
    """A mapping of patterns and a function both decide; what they give is checked."""
    infos = _infos(["moe.router.weight", "moe.expert.0.weight", "out.weight"])
    by_pattern = group_parameters(infos, {"router": "router", r"expert\.": "experts"})
    assert by_pattern.groups == ("router", "experts", "other")
    by_rule = group_parameters(infos, lambda p: p.name.split(".")[0])
    assert by_rule.groups == ("moe", "out")
    with pytest.raises(SchemaError, match="expected a non-empty string"):
        group_parameters(infos, lambda p: "")


def test_the_table_says_who_went_where() -> None:
    """The table for reports lists name, shape and size under each group."""
    infos = [ParameterInfo(name="wte.weight", shape=(10, 4)), *_infos(["attn.qkv.weight"])]
    table = group_parameters(infos).table(infos)
    assert table["embed"] == [{"name": "wte.weight", "shape": [10, 4], "numel": 40}]
