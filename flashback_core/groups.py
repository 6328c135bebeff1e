"""Parameter name -> group of parameters that share a role.

Transformers get ``embed, attn_qkv, attn_out, mlp_in, mlp_out, norm, head, other``; models without
attention are split by depth into ``stem, body_1 … body_4, norm, head, other``. Either way there are
eight groups, so that a sketch has 128 metrics. Rules see names, shapes and the class of the
module that owns the parameter; no torch is needed here.

Names are known of nanoGPT, Hugging Face Llama, GPT-2, BERT, T5 and ViT, timm and torchvision
models.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from flashback_core.errors import SchemaError
from flashback_core.schema import BODY_GROUPS, TRANSFORMER_GROUPS

__all__ = ["GroupRule", "Grouping", "ParameterInfo", "clean_name", "group_parameters"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterInfo:
    """What a rule may look at: the name, the shape, and the class that owns the parameter."""

    name: str
    shape: tuple[int, ...] = ()
    module: str = ""

    @property
    def numel(self) -> int:
        """Number of entries."""
        n = 1
        for size in self.shape:
            n *= size
        return n


GroupRule = Callable[[ParameterInfo], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Grouping:
    """Groups in order, and the group of each parameter by name."""

    groups: tuple[str, ...]
    of: dict[str, str]

    def table(self, parameters: Sequence[ParameterInfo]) -> dict[str, list[dict[str, object]]]:
        """Which parameter went where: group -> [{name, shape, numel}], for reports."""
        rows: dict[str, list[dict[str, object]]] = {g: [] for g in self.groups}
        for p in parameters:
            row = {"name": p.name, "shape": list(p.shape), "numel": p.numel}
            rows[self.of[p.name]].append(row)
        return rows


def clean_name(name: str) -> str:
    """`name` without what wrappers put in: ``module.`` in front, ``_orig_mod.`` anywhere.

    Examples:
        >>> clean_name("module._orig_mod.h.0.attn.c_attn.weight")
        'h.0.attn.c_attn.weight'
    """
    name = name.replace("_orig_mod.", "").replace("_fsdp_wrapped_module.", "")
    while name.startswith("module."):
        name = name.removeprefix("module.")
    return name


def group_parameters(
    parameters: Sequence[ParameterInfo],
    groups: GroupRule | Mapping[str, str] | None = None,
) -> Grouping:
    """Sort `parameters` into groups.

    Args:
        parameters: In the model's own order.
        groups: A rule ``ParameterInfo -> group``, or a mapping of regular expressions to groups
            (the first that is found in the name counts, the rest goes to ``other``). None takes the
            built-in rules.

    Returns:
        The groups in order of first use (or the built-in order) and each parameter's group.

    Raises:
        SchemaError: If a rule returns something else than a non-empty string.
    """
    if groups is None:
        return _built_in(parameters)
    rule = groups if callable(groups) else _pattern_rule(groups)
    of = {p.name: rule(p) for p in parameters}
    for name, group in of.items():
        if not isinstance(group, str) or not group:
            msg = f"groups= gave {group!r} for parameter {name!r}; expected a non-empty string"
            raise SchemaError(msg)
    return Grouping(groups=tuple(dict.fromkeys(of.values())), of=of)


def _pattern_rule(patterns: Mapping[str, str]) -> GroupRule:
    compiled = [(re.compile(p), g) for p, g in patterns.items()]

    def rule(parameter: ParameterInfo) -> str:
        return next((g for p, g in compiled if p.search(parameter.name)), "other")

    return rule


def _built_in(parameters: Sequence[ParameterInfo]) -> Grouping:
    if any(_ROLES["attn_qkv"].search(clean_name(p.name)) for p in parameters):
        of = {p.name: _transformer_group(p) for p in parameters}
        return Grouping(groups=TRANSFORMER_GROUPS, of=of)
    return Grouping(groups=BODY_GROUPS, of=_by_depth(parameters))


def _words(*names: str) -> re.Pattern[str]:
    """Matches when one of `names` (regular expressions) is a whole dotted part of a name."""
    return re.compile(rf"(?:^|\.)(?:{'|'.join(names)})(?:\.|$)", re.IGNORECASE)


_NORM_MODULE = re.compile(r"norm", re.IGNORECASE)
_NORM = _words(
    r"\w*layer_?norm\w*", r"\w*rms_?norm\w*", r"\w*batch_?norm\w*", r"\w*group_?norm\w*",
    r"norm\w*", r"\w*_norm\w*", r"ln_?\d*\w{0,3}", r"ln_f", r"bn_?\d*",
)  # fmt: skip
_ATTENTION = re.compile(r"attn|attention", re.IGNORECASE)

_ROLES = {
    "attn_qkv": _words(
        r"c_attn", r"w?qkv\w*", r"query_key_value", r"in_proj\w*", r"[qkv]_?proj", r"[qkv]_lin",
        r"query", r"key", r"value", r"w[qkv]", r"to_[qkv]", r"to_qkv", r"q_attn", r"attn_qkv",
        r"SelfAttention\.[qkv]", r"EncDecAttention\.[qkv]",
    ),
    "attn_out": _words(
        r"o_proj", r"out_lin", r"attn_out", r"to_out(?:\.0)?",
        r"\w*(?:attn|attention)\w*\.(?:.*\.)?(?:c_proj|out_proj|proj|output\.dense|dense|out|w?o)",
    ),
    "mlp_in": _words(
        r"c_fc", r"gate_proj", r"up_proj", r"gate_up_proj", r"fc1", r"fc_in", r"mlp_up", r"mlp_in",
        r"intermediate\.dense", r"w1", r"w3", r"wi(?:_\d)?", r"lin1", r"linear1", r"dense_h_to_4h",
        r"(?:mlp|ffn?|feed_forward)\.(?:net\.)?0(?:\.proj)?",
    ),
    "mlp_out": _words(
        r"(?:mlp|ffn?|feed_forward)\.(?:c_proj|proj|out|output)", r"down_proj", r"fc2", r"fc_out",
        r"mlp_down", r"mlp_out", r"output\.dense", r"w2", r"lin2", r"linear2", r"dense_4h_to_h",
        r"DenseReluDense\.wo", r"(?:mlp|ffn?|feed_forward)\.(?:net\.)?[23]",
    ),
    "head": _words(
        r"\w*lm_head", r"\w*head\w*", r"classifier\w*", r"score", r"cls\.predictions\b.*",
        r"qa_outputs", r"output_projection", r"unembed\w*", r"decoder\.(?:weight|bias)",
    ),
    "embed": _words(
        r"wte", r"wpe", r"\w*embed\w*", r"tok", r"pos",
        r"\w*(?:cls|mask|dist|register|class)_token\w*",
        r"shared", r"conv_proj",
    ),
}  # fmt: skip


def _is_norm(parameter: ParameterInfo) -> bool:
    name = clean_name(parameter.name)
    owner = name.rpartition(".")[0]
    return bool(_NORM_MODULE.search(parameter.module)) or bool(_NORM.search(owner or name))


def _transformer_group(parameter: ParameterInfo) -> str:
    name = clean_name(parameter.name)
    if _is_norm(parameter):
        return "norm"
    for group in ("attn_qkv", "attn_out", "mlp_in"):
        if _ROLES[group].search(name):
            return group
    if _ROLES["mlp_out"].search(name):
        return "mlp_out"
    for group in ("head", "embed"):
        if _ROLES[group].search(name):
            return group
    return "other"


def _by_depth(parameters: Sequence[ParameterInfo]) -> dict[str, str]:
    """Stem, four parts of the body in order, norm, head, other."""
    of = {p.name: "norm" for p in parameters if _is_norm(p)}
    rest = [p for p in parameters if p.name not in of]
    owners = list(dict.fromkeys(_owner(p) for p in rest))
    special = _stem_and_head(owners)
    body = [o for o in owners if o not in special]
    units = _units(body)
    order = list(dict.fromkeys(units[o] for o in body))
    part = {u: f"body_{i * 4 // len(order) + 1}" for i, u in enumerate(order)}
    for p in rest:
        owner = _owner(p)
        of[p.name] = special.get(owner) or part[units[owner]]
    return of


def _owner(parameter: ParameterInfo) -> str:
    """The module that owns the parameter; a bare parameter owns itself."""
    name = clean_name(parameter.name)
    return name.rpartition(".")[0] or name


def _stem_and_head(owners: Sequence[str]) -> dict[str, str]:
    """The first module is the stem, the last the head, where there are three or more."""
    if len(owners) < 3:
        return dict.fromkeys(owners[-1:], "head") | (
            dict.fromkeys(owners[:1], "stem") if len(owners) == 2 else {}
        )
    named = [o for o in owners if _ROLES["head"].search(o) or o in {"fc", "output", "out"}]
    return {**dict.fromkeys(named or owners[-1:], "head"), owners[0]: "stem"}


def _units(owners: Sequence[str]) -> dict[str, str]:
    """For each owner the shallowest prefix that splits the body into four parts or more."""
    deepest = max((o.count(".") + 1 for o in owners), default=0)
    for depth in range(1, deepest + 1):
        units = {o: ".".join(o.split(".")[:depth]) for o in owners}
        if len(set(units.values())) >= 4:
            return units
    return {o: o for o in owners}
