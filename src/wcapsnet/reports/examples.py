"""Single images: their path through the network, and their reconstructions."""

from __future__ import annotations

import math

from torch import Tensor

from .. import formatting as text
from ..explanations.shares import outlined, ties_in_words
from .colors import share_over, signed_over
from .facts import Facts
from .html import Html, folded, h, picture, table
from .pictures import Example
from .section import section, unable, why_no_pictures
from .svg import Bar, bar_chart, marked, share_scale, signed_scale


def examples(facts: Facts) -> Html:
    title = "Images and their path through the network"
    lead = (
        "For each image: the weights of the capsules in every level, where the last level looked, and what each of "
        "its capsules added to the winning logit. The contributions add up to exactly the logit. In the weight "
        "bars, orange marks the largest weights, unless all tie, and the vertical line is the equal share."
    )
    if facts.pictures is None:
        return section("examples", title, lead, unable(why_no_pictures(facts)))
    return section("examples", title, lead, [_example(facts, one) for one in facts.pictures.examples])


def _example(facts: Facts, example: Example) -> Html:
    one, shown = example.explained, example.shown
    image = shown.pixels.float() / 255
    answer = "right" if shown.right else "wrong"
    head = h(
        "header",
        h("h3", facts.classes[shown.label]),
        h(
            "span",
            f"taken for {facts.classes[shown.predicted]} with {text.percentage(shown.probability, 1)}",
            class_=answer,
        ),
        h("span", shown.name, class_="soft"),
    )
    heat, parts = one.heat(), one.contribution_heat()
    n, weights = heat.shape[0], one.weights[-1]
    size, tied = heat.shape[1:], outlined(one.tied)
    strip = [_framed(picture(shown.pixels, f"{shown.name}: {facts.classes[shown.label]}", scale=112), "input")]
    strip.append(
        _framed(picture(example.reconstruction, f"reconstruction of {shown.name}", scale=112), "reconstruction")
    )
    for k in range(min(n, 3)):
        drawn = picture(
            share_over(image, heat[k], weights.numel()), f"weights of capsule {k} of the last level", scale=112
        )
        places = [(i, j) for of, i, j in tied if of == k]
        dot = one.place[1:] if one.place[0] == k else None
        share = float(one.block_weights(len(one.weights) - 1)[k])
        strip.append(_framed(marked(drawn, size, one.stride, places, dot), f"weights of capsule {k} (sum {share:.3f})"))
    total = parts.sum(0)
    most = float(total.abs().max())
    signed = signed_over(image, total / max(most, 1e-9))
    strip.append(
        _framed(
            picture(signed, "contributions to the logit of the predicted class, over the image", scale=112),
            f"evidence for (blue) or against (orange) {facts.classes[one.predicted]}",
        )
    )
    top = one.probabilities.argsort(descending=True)[:4].tolist()
    bars = [
        Bar(
            facts.classes[r],
            float(one.probabilities[r]),
            _share(one.probabilities[r]),
            color=2 if r == shown.label else 7,
        )
        for r in top
    ]
    chart = bar_chart("The most probable classes", bars, width=230, thick=13)
    strip.append(h("div", h("h4", "Predictions (green: the true class)"), chart))
    below = h(
        "div",
        h("div", share_scale(weights.numel()), h("p", ties_in_words(one.tied), class_="soft")),
        h("div", signed_scale(most), h("p", "Contribution of each position to the logit.", class_="soft")),
        class_="scales",
    )
    return h("article", head, h("div", strip, class_="strip"), below, _levels_of(facts, example), class_="example")


def _framed(drawn: Html, caption: str) -> Html:
    return h("figure", drawn, h("figcaption", caption))


def _levels_of(facts: Facts, example: Example) -> Html:
    one = example.explained
    name = facts.classes[one.predicted]
    panels, rows = [], []
    for level in range(len(one.weights)):
        weights = one.block_weights(level).tolist()
        off = one.without[level][:, one.predicted].tolist() if one.without else [math.nan] * len(weights)
        winners = one.winners[level] if len(one.winners[level]) < len(weights) else ()  # all tie: none stands out
        bars = [
            Bar(f"{k}", w, f"{w:.3f}", color=1 if k in winners else 7, mark=1 / len(weights))
            for k, w in enumerate(weights)
        ]
        chart = bar_chart(
            f"Weights of level {level + 1}; vertical lines are the equal share",
            bars,
            high=max(weights),
            width=230,
            thick=13 if len(bars) <= 8 else 7,
        )
        panels.append(h("div", h("h4", f"Level {level + 1}: weights"), chart))
        rows += [
            [f"level {level + 1}, capsule {k}", f"{w:.3f}", "" if math.isnan(p) else text.percentage(p, 1)]
            for k, (w, p) in enumerate(zip(weights, off, strict=True))
        ]
    parts = one.contributions[one.predicted].flatten(1).sum(1).tolist()
    logit = float(one.logits[one.predicted])
    most = max(*(abs(part) for part in parts), abs(logit), 1e-9)
    bars = [
        Bar(f"capsule {k}", abs(part), text.signed(part, 2), color=0 if part >= 0 else 1)
        for k, part in enumerate(parts)
    ]
    bars.append(Bar("logit", abs(logit), text.signed(logit, 2), color=7))
    chart = bar_chart(
        f"Contributions to the logit of {name}", bars, high=most, width=230, thick=13 if len(bars) <= 8 else 7
    )
    panels.append(h("div", h("h4", f"Adds to the logit of {name}"), chart))
    numbers = table(
        ["capsule", "weight", f"probability of {name} without it"],
        rows,
        f"Every capsule, and the effect of switching it off (with all on: {_share(one.probabilities[one.predicted])})",
    )
    decoded = one.decoded(facts.classes)
    return h(
        "div",
        h("div", panels, class_="levels"),
        h("p", f"{decoded[0].upper()}{decoded[1:]}.", class_="soft"),
        folded("All weights, and the effect of switching each capsule off", numbers),
    )


def _share(probability: Tensor) -> str:
    return text.percentage(float(probability), 1)


def reconstructions(facts: Facts) -> Html:
    title = "Reconstructions"
    lead = (
        "The decoder reconstructs the image from one vector of the last level and its position: "
        "the one with the largest weight; if several "
        "tie to within 1 %, the one that adds most to the predicted class."
    )
    if facts.pictures is None:
        return section("reconstructions", title, lead, unable(why_no_pictures(facts)))
    items = []
    for one in facts.pictures.reconstructions:
        name = facts.classes[one.shown.label]
        pair = [
            picture(one.shown.pixels, f"{one.shown.name}: {name}", scale=72),
            picture(one.reconstruction, f"its reconstruction, squared error {one.shown.squared_error:.3f}", scale=72),
        ]
        items.append(
            h(
                "li",
                h("div", pair, class_="pair"),
                h("div", name),
                h("div", f"error {one.shown.squared_error:.3f}", class_="soft"),
            )
        )
    caption = (
        "Input and reconstruction of the image with the median error of its class (mean squared error of "
        "the normalised pixels)."
    )
    return section("reconstructions", title, lead, h("ul", items, class_="thumbs pairs"), h("p", caption))
