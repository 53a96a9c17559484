"""Whether a proxy keeps what is shown up to date: since when, with which flags, and how old its last sync is."""

import time
from collections.abc import Iterator
from typing import Final

from rich.text import Text

from vipwire.config.configuration import Config
from vipwire.config.flags import explicit_flags
from vipwire.inspect.command.show import ago, coloured, shown_time
from vipwire.inspect.status.document import Document
from vipwire.proxy.start.record import ProxyRecord, ProxyState, read_record

_NOBODY: Final = "nobody keeps the kernel up to date"


def proxy_document(config: Config) -> Document:
    """Describe the proxy of this network namespace; `otherFlags` are those that this look does not share with it."""
    state, record = read_record(config.state_dir)
    document: Document = {"state": state.value}
    if record is not None:
        document |= _described(record, config)
    if record is not None and state is not ProxyState.RUNNING:  # while it runs this would change all the time
        document["seen"] = shown_time(record.seen)
    return document


def _described(record: ProxyRecord, config: Config) -> Document:
    looked = set(explicit_flags(config))
    other = [flag for flag in record.flags if flag not in looked and not flag.startswith("--proxy-mode=")]
    if record.mode != config.proxy_mode:
        other.append(f"--proxy-mode={record.mode}")
    return {
        "pid": record.pid,
        "version": record.version,
        "node": record.node,
        "mode": record.mode,
        "started": shown_time(record.started),
        "ended": shown_time(record.ended),
        "reason": record.reason,
        "flags": list(record.flags),
        "otherFlags": other,
        "lastSync": {family: shown_time(when) for family, when in record.synced.items()},
        "failing": dict(record.failing),
    }


def proxy_text(document: Document, now: float | None = None) -> Text:
    """Write one line about the proxy, and one more for each thing that is wrong."""
    now = time.time() if now is None else now
    text = Text("proxy: ", style="dim")
    state = document["state"]
    if state == ProxyState.NONE.value:
        text.append_text(coloured("none runs here", "warning"))
        return text.append(f"; {_NOBODY}")
    if state == ProxyState.RUNNING.value:
        text.append_text(coloured("runs", "ok"))
        synced = "".join(_synced(document, now))
        text.append(f" since {document['started']} (pid {document['pid']}, vipwire {document['version']}){synced}")
    else:
        word = "ended" if state == ProxyState.ENDED.value else "was killed or has crashed"
        text.append_text(coloured(word, "bad"))
        when = document["ended"] or document["seen"]
        reason = f" ({document['reason']})" if document["reason"] else ""
        last = "" if state == ProxyState.ENDED.value else ", last seen"
        text.append(f"{reason}{last} {ago(when, now)}; {_NOBODY}")
    for resource, error in document["failing"].items():
        text.append_text(Text(f"\nproxy: {resource}: {error}", style="yellow"))
    if document["otherFlags"]:
        flags = " ".join(document["otherFlags"])
        text.append_text(Text(f"\nproxy: it has {flags}, this look has not", style="yellow"))
    return text


def _synced(document: Document, now: float) -> Iterator[str]:
    for family, when in document["lastSync"].items():
        yield f"; {family} synced {ago(when, now)}" if when else f"; {family} not yet synced"
