"""A comparison as one HTML file to keep: nothing from elsewhere, no script, every text escaped."""

import html
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

Document = dict[str, Any]

_STYLE: Final = """
:root { color-scheme: light dark; --ink: #16202c; --dim: #566476; --line: #dde3ea; --card: #fff; --back: #f4f6f9;
  --accent: #0b63bd; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6ecf3; --dim: #98a6b6; --line: #2a3542; --card: #161d26;
  --back: #0e1319; --accent: #62b1ff; } }
body { margin: 0 auto; max-width: 1100px; padding: 2rem 1rem; background: var(--back); color: var(--ink);
  font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.1rem; margin-top: 2rem; }
p, caption { color: var(--dim); text-align: left; }
.scroll { overflow-x: auto; background: var(--card); border: 1px solid var(--line); border-radius: 10px; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: .5rem .8rem; vertical-align: top; }
.whole { white-space: nowrap; }
thead th { font-size: .8rem; color: var(--dim); } tbody tr { border-top: 1px solid var(--line); }
.bar { display: block; height: 6px; border-radius: 3px; background: var(--accent); margin-top: .3rem; }
details { background: var(--card); border: 1px solid var(--line); border-radius: 10px; margin: .5rem 0; }
summary { padding: .6rem .9rem; cursor: pointer; font-weight: 600; }
code { font: .86em ui-monospace, monospace; overflow-wrap: anywhere; }
@media (max-width: 480px) { body { padding: 1rem .6rem; } th, td { padding: .45rem .35rem; font-size: .84rem; } }
""".strip()


def html_page(document: Document) -> str:
    """Write a comparison as a page."""
    ran = [each for each in document["modes"] if each["kernel"] is not None]
    parts = [
        "<h1>vipwire: all modes on the same Services and packets</h1>",
        "<p>Two nodes, five Pods and a client outside, in network namespaces; 4 Services of both families.</p>",
        *_missing(document),
        *_costs(ran),
        *_answers(ran),
        "<h2>The way of one packet: 203.0.113.2 to the ClusterIP</h2>",
        *map(_way, ran),
    ]
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>vipwire: modes compared</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{_STYLE}</style></head><body>{''.join(parts)}</body></html>\n"
    )


def _missing(document: Document) -> Iterator[str]:
    for each in document["modes"]:
        if each["kernel"] is None:
            yield f"<p>{_text(each['mode'])} does not run here: {_text(each['reason'])}</p>"


def _costs(ran: list[Document]) -> Iterator[str]:
    most = [max((pick(each) for each in ran), default=0) or 1 for _, pick, _ in _COSTS]
    rows = [
        [
            f'{_text(each["mode"])}<br><small class="whole">{_text(each["kernel"])}</small>',
            *(
                f"{_wholes(words(each).split(', '))}{_bar(max(0.0, pick(each)) / top)}"
                for (_, pick, words), top in zip(_COSTS, most, strict=True)
            ),
        ]
        for each in ran
    ]
    yield "<h2>What it costs</h2>"
    yield _table(["mode", *(title for title, _, _ in _COSTS)], rows)
    yield "<p>A guest kernel is several times slower: compare its times among themselves.</p>"


def more_text(microseconds: float) -> str:
    """Write what is added; what is below nothing is the clock's noise."""
    return f"+{microseconds:.0f} µs" if microseconds >= 1 else "nothing"


def _more(each: Document) -> float:
    cost = each["connection"]
    return float(cost["toServiceMicroseconds"] - cost["toPodMicroseconds"])


_COSTS: Final[tuple[tuple[str, Callable[[Document], float], Callable[[Document], str]], ...]] = (
    ("objects written", lambda each: each["written"]["objects"], lambda each: str(each["written"]["objects"])),
    (
        "one Pod of five leaves",
        lambda each: each["change"]["milliseconds"],
        lambda each: f"{each['change']['objects']} objects, {each['change']['milliseconds']:.3g} ms",
    ),
    (
        "a connection",
        lambda each: each["connection"]["toServiceMicroseconds"],
        lambda each: f"{each['connection']['toServiceMicroseconds']:.0f} µs, {more_text(_more(each))} by the Service",
    ),
    (
        "rules that a packet meets",
        lambda each: len(each["explained"]["path"]),
        lambda each: str(len(each["explained"]["path"])),
    ),
)


def _answers(ran: list[Document]) -> Iterator[str]:
    for number, path in enumerate(ran[0]["paths"] if ran else ()):
        yield f"<h2>{_text(path['who'])} to {_text(path['to'])} <code>{_text(path['at'])}</code></h2>"
        yield _table(["mode", "what happens", "answered by", "the Pod sees"], [_answer(each, number) for each in ran])


def _answer(each: Document, number: int) -> list[str]:
    path = each["paths"][number]
    happens = (f"{count} {word}" for word, count in path["outcomes"].items())
    pods = (f"{name} {count}" for name, count in path["pods"].items())
    return [_text(each["mode"]), *map(_wholes, (happens, pods, path["saw"]))]


def _wholes(items: Iterable[str]) -> str:
    """Write items with commas between; a line may end behind one, not within."""
    return ", ".join(f'<span class="whole">{_text(item)}</span>' for item in items) or "-"


def _way(each: Document) -> str:
    rows = [
        [_text(step["object"]), f"<code>{_text(step['text'])}</code>", _text(step["effect"])]
        for step in each["explained"]["path"]
    ]
    table = _table(["on the way", "rule or element", "what it does"], rows)
    return f"<details open><summary>{_text(each['mode'])}: {len(rows)} steps</summary>{table}</details>"


def _table(titles: Iterable[str], rows: Iterable[list[str]]) -> str:
    head = "".join(f'<th scope="col">{_text(title)}</th>' for title in titles)
    body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _bar(share: float) -> str:
    return f'<span class="bar" style="width:{100 * share:.1f}%"></span>'


def _text(text: str) -> str:
    return html.escape(text, quote=True)
