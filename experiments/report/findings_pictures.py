"""The pictures of what an experiment is about, from its findings: one function an experiment."""

from collections.abc import Callable, Mapping
from typing import Any

import altair as alt

from experiments.kv_size import KVShape, cache_bytes
from experiments.report.palette import Palette
from experiments.report.pictures import SMALL, TALL, Picture, given, levels_across, server_colour, server_shape, tones
from protocol.sizes import bytes_text

Found = Mapping[str, Any]
BAR = 46
READ, CACHED = "read", "taken from the cache"
CONTEXTS = [2**power for power in range(7, 21)]


def findings_pictures(experiment: str, found: Found | None, palette: Palette) -> list[Picture]:
    """The pictures of an experiment; none where it has none or found nothing."""
    make = PICTURES.get(experiment)
    return make(found, palette) if make is not None and found is not None else []


# --- sweep ---


def sweep(found: Found, palette: Palette) -> list[Picture]:
    rows = [
        {
            "total": row["tokens_per_s"],
            "each": row["tokens_per_s_per_reply"],
            "replies": row["replies"],
            "server": f"{row['weights']} weights",
            "words": f"{row['replies']} at once: {row['tokens_per_s']:.3g} tokens/s in total, "
            f"{row['tokens_per_s_per_reply']:.3g} for each reply",
        }
        for row in found["rows"]
        if row["tokens_per_s"] is not None
    ]
    if not rows:
        return []
    kinds = list(dict.fromkeys(row["server"] for row in rows))
    base = alt.Chart(given(rows)).encode(
        x=alt.X("each:Q", axis=alt.Axis(title="tokens/s of each reply", tickCount=8), scale=alt.Scale(zero=True)),
        y=alt.Y("total:Q", axis=alt.Axis(title="tokens/s in total"), scale=alt.Scale(zero=True)),
        color=server_colour(kinds, palette),
        order="replies:Q",
    )
    points = base.mark_point(filled=True, size=70, opacity=1).encode(shape=server_shape(kinds), tooltip="words:N")
    labels = base.mark_text(dy=-11, fontSize=SMALL, color=palette.ink).encode(
        text="replies:N", color=alt.value(palette.ink)
    )
    chart = alt.layer(base.mark_line(strokeWidth=1.5), points, labels).properties(width="container", height=320)
    words = (
        "A point for each number of replies at once (beside it). Up is more for everyone together, right is faster for "
        "each one."
    )
    described = "; ".join(row["words"] for row in rows)
    return [Picture("sweep", "What batching gains in total, and costs each reply", words, described, chart, wide=True)]


# --- prefix ---


def prefix(found: Found, palette: Palette) -> list[Picture]:
    rows = [row for row in found["rows"] if row["completed"]]
    if not rows:
        return []
    return [_tokens_read(rows, palette), _first_words(rows, palette)]


def _tokens_read(rows: list[Found], palette: Palette) -> Picture:
    parts = [part for row in rows if row["prompt_tokens"] is not None for part in _parts(row)]
    colour = tones({READ: palette.reading, CACHED: palette.waiting})
    chart = _bars(parts, "tokens", "prompt tokens of the typical email").encode(color=colour, order="place:Q")
    described = "; ".join(f"{part['label']}: {part['words']}" for part in parts)
    return Picture("prefix-read", "Prompt tokens read", "", described, chart)


def _parts(row: Found) -> list[dict[str, Any]]:
    """A prompt's tokens: those that were read, and those that were not."""
    read = row["prompt_tokens_read"]
    counts = ((READ, read), (CACHED, row["prompt_tokens"] - read))
    return [
        {"label": row["label"], "kind": kind, "tokens": tokens, "place": place, "words": f"{tokens:,} {kind}"}
        for place, (kind, tokens) in enumerate(counts)
    ]


def _first_words(rows: list[Found], palette: Palette) -> Picture:
    data = [
        {
            "label": row["label"],
            "s": row["ttft_p50_s"],
            "p95": row["ttft_p95_s"],
            "words": f"p50 {row['ttft_p50_s']:.3g} s, p95 {row['ttft_p95_s']:.3g} s",
        }
        for row in rows
        if row["ttft_p50_s"] is not None
    ]
    bars = _bars(data, "s", "first word, seconds", palette.writing)
    ticks = (
        alt.Chart(given(data))
        .mark_tick(color=palette.ink, thickness=3, size=26)
        .encode(x="p95:Q", y=alt.Y("label:N", sort=None), tooltip="words:N")
    )
    chart = alt.layer(bars, ticks).properties(width="container", height=BAR * len(rows))
    described = "; ".join(f"{row['label']}: {row['words']}" for row in data)
    return Picture("prefix-first", "First words", "The bar is p50, the upright line p95.", described, chart)


# --- the KV cache ---


def kv_size(found: Found, palette: Palette) -> list[Picture]:
    told, rows = found["figures"], _sizes(found)
    names = list(dict.fromkeys(row["server"] for row in rows))
    tokens = alt.X(
        "context:Q",
        scale=alt.Scale(type="log", base=2, nice=False),
        axis=alt.Axis(title="tokens of each user", format=",d"),
    )
    size = alt.Y("gigabytes:Q", scale=alt.Scale(type="log"), axis=alt.Axis(title="KV cache, GB", format="~g"))
    base = alt.Chart(given(rows)).encode(x=tokens, y=size, color=server_colour(names, palette))
    points = base.transform_filter("datum.asked").mark_point(filled=True, size=80, opacity=1)
    layers = [base.mark_line(strokeWidth=2), points.encode(shape=server_shape(names), tooltip="words:N")]
    chart = alt.layer(*layers, *levels_across(_room(told), "gigabytes", palette))
    passing = told["tokens_to_pass_weights"]
    words = f"The points are at the {told['context']:,} tokens that were asked for." + (
        f" The cache passes the weights at {passing:,} tokens in all." if passing else ""
    )
    described = "; ".join(row["words"] for row in rows if row["asked"])
    title = f"{found['model']}: KV cache and weights"
    return [Picture("kv-size", title, words, described, chart.properties(width="container", height=340), wide=True)]


def _sizes(found: Found) -> list[dict[str, Any]]:
    """What one user's cache takes, and all users', at every length."""
    told, shape = found["figures"], KVShape(**found["shape"])
    contexts = sorted({*CONTEXTS, told["context"], told["tokens_to_pass_weights"] or told["context"]})
    rows = []
    for users in dict.fromkeys([1, told["users"]]):
        name = f"{users:,} user{'s' if users > 1 else ''}"
        for context in contexts:
            size = users * cache_bytes(shape, context, told["bits"])
            words = f"{name}, {context:,} tokens: {bytes_text(size)}"
            asked = context == told["context"]
            rows.append({"context": context, "gigabytes": size / 1e9, "server": name, "asked": asked, "words": words})
    return rows


def _room(told: Found) -> list[dict[str, Any]]:
    """What the cache stands beside, as far as it is known."""
    levels = (("the weights", told["weights_bytes"]), ("memory", told["memory_bytes"]))
    known = [(what, count) for what, count in levels if count is not None]
    return [{"gigabytes": count / 1e9, "words": f"{what}, {bytes_text(count)}"} for what, count in known]


def kv_quant(found: Found, palette: Palette) -> list[Picture]:
    rows = [row for row in found["rows"] if row["found"] is not None]
    if not rows:
        return []
    shares = [row | {"found": row["found"] / row["asked"] if row["asked"] else None} for row in rows]
    return [
        _by_bits(shares, "found", "Names found", ".0%", palette),
        _by_bits(shares, "saved", "Cache saved, against 16 bits as computed", ".0%", palette),
        _by_bits(shares, "read_p50_s", "Reading the prompt, seconds", "~g", palette),
    ]


def _by_bits(rows: list[Found], field: str, title: str, form: str, palette: Palette) -> Picture:
    data = [
        {
            "bits": f"{row['kv_bits']} bits",
            "value": row[field],
            "server": f"about {row['context']:,} tokens",
            "words": f"{row['kv_bits']} bits, about {row['context']:,} tokens: {row[field]:{form.removeprefix('~')}}",
        }
        for row in rows
        if row[field] is not None
    ]
    lengths = list(dict.fromkeys(row["server"] for row in data))
    whole = alt.Scale(domain=[0, 1]) if form.endswith("%") else alt.Scale()
    chart = (
        alt.Chart(given(data))
        .mark_bar()
        .encode(
            x=alt.X("bits:N", sort=None, axis=alt.Axis(title=None, labelAngle=0)),
            xOffset=alt.XOffset("server:N", sort=None),
            y=alt.Y("value:Q", scale=whole, axis=alt.Axis(title=None, format=form, tickCount=5)),
            color=server_colour(lengths, palette, "square"),
            tooltip="words:N",
        )
        .properties(width="container", height=TALL - 60)
    )
    return Picture(f"kv-quant-{field}", title, "", "; ".join(row["words"] for row in data), chart)


def _bars(rows: list[dict[str, Any]], field: str, title: str, colour: str | None = None) -> alt.Chart:
    mark = {"color": colour} if colour else {}
    return (
        alt.Chart(given(rows))
        .mark_bar(**mark)
        .encode(
            x=alt.X(f"{field}:Q", axis=alt.Axis(title=title, tickCount=6)),
            y=alt.Y("label:N", sort=None, axis=alt.Axis(title=None, labelLimit=120)),
            tooltip="words:N",
        )
        .properties(width="container", height=BAR * len({row["label"] for row in rows}))
    )


PICTURES: dict[str, Callable[[Found, Palette], list[Picture]]] = {
    "sweep": sweep,
    "prefix": prefix,
    "kv-size": kv_size,
    "kv-quant": kv_quant,
}
