"""Writes the rules by which HAProxy denies requests that a Pod may read differently from HAProxy (400). Pure.

Pods get each path as the client sent it. Servers read a path in several ways: some decode it, merge slashes, read %2F
as a slash, or cut it at a semicolon. So HAProxy looks a path up in each of these readings, and denies the request
unless all of them lead to the same place. The readings are all combinations of two changes:

    as sent ──────── decoded            one spelling for each character; %2F stays
       │                │
    restructured ─── both               `//` is a slash, or %2F is one, or the path ends at `;` (%3B, `?`, `#`)

HAProxy denies at once all paths with further readings: dot segments, backslashes, control characters, encoded letters
and digits, bytes encoded twice, and two changes of the structure in one path. A host whose paths all lead to one
place has no such rules: every reading leads there.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Final
from urllib.parse import quote, unquote_to_bytes

from vipwire_l7.haproxy.words import Word, write_line, write_plain, write_quoted
from vipwire_l7.plan.misread import CUT, REFUSED
from vipwire_l7.plan.sites import Aspect, Comparison

APART: Final = "apart"
"""The map of the sites whose paths lead to different places."""
READ: Final = "txn.read"
"""The variable with one reading of the path."""
_DENY: Final = "http-request deny deny_status 400"
_HAS_READINGS: Final = r"[^A-Za-z0-9/._~-]|//|/\.{1,2}(?:/|$)"
_LONGEST: Final = 4000
"""The maximum length in bytes of a path whose readings are compared: HAProxy's buffer has room for three."""
_RESTRUCTURED: Final = f'regsub("//+","/",g),regsub("%2F","/",gi),regsub("{CUT}.*","",i)'
_DECODED: Final = 'regsub("%2F","%252F",gi),url_dec,url_enc,regsub("%2F","/",g)'
_READINGS: Final = ("path", f"path,{_DECODED}", f"path,{_RESTRUCTURED}", f"path,{_RESTRUCTURED},{_DECODED}")
_WRITTEN: Final = "".join(f',regsub("%{ord(each):02X}","{each}",g)' for each in "!&*+,:=@")
"""Writes the spelling of `_DECODED` as operators write it in regular expressions."""
_SPELLED: Final = rf"//|%(?:2[1-9a-f]|3[0-9a-f]|[4567])|(?-i:%.?[a-f])|{CUT}"
"""A path that a regular expression may match in one reading and not in another."""


is_plain = re.compile("[A-Za-z0-9/._~-]*").fullmatch
"""Matches a path that `_DECODED` does not change."""


def decode_path(path: str) -> str:
    """Write a path as `_DECODED` does."""
    return quote(unquote_to_bytes(re.sub("%2f", "%252F", path, flags=re.IGNORECASE)))


def write_skip_rules(index: int) -> Iterator[str]:
    """Before each twentieth choice, skip all choices for a request whose target is none and whose path is plain."""
    if index % 20 == 0:
        form = "http-request allow unless {{ var(txn.target) -m beg choice: }} or {{ path -m reg -- {} }}"
        yield write_line(form, write_quoted(_HAS_READINGS))


def write_path_rules(
    site: str, apart: str, search: Callable[[str], Iterable[str]], expressions: Iterable[str] = ()
) -> Iterator[str]:
    """Deny a path unless all its readings lead to the same place. These are the last rules for requests.

    `site` fetches a request's site, `apart` is the file of the map of sites whose paths lead to different places.
    `search` writes the rules that look up the path in the variable `READ`; its argument is a converter for regular
    expressions. In the choices `expressions`, regular expressions of the path decide which access controls a request
    meets.
    """
    yield write_line(
        f"http-request allow unless {{{{ path -m reg -- {{}} }}}} {{{{ {site},map_str({apart}) -m found }}}}",
        write_quoted(_HAS_READINGS),
    )
    yield write_line(f"http-request return status 414 if {{{{ path,length gt {_LONGEST} }}}}")
    yield write_line(f"{_DENY} if {{{{ path -m reg -i -- {{}} }}}}", write_quoted(REFUSED))
    # The readings must lead to the same target before choices, so the target of the choice's step is kept aside.
    yield write_line("http-request set-var(txn.taken) var(txn.target)")
    for number, reading in enumerate(_READINGS):
        yield write_line(f"http-request set-var({READ}) {{}}", write_quoted(reading))
        yield write_line("http-request unset-var(txn.target)")
        yield from search(_WRITTEN if "url_dec" in reading else "")
        yield write_line("http-request set-var(txn.target) str(-) unless {{ var(txn.target) -m found }}")
        if number == 0:
            yield write_line("http-request set-var(txn.first) var(txn.target)")
        else:
            yield write_line(f"{_DENY} unless {{{{ var(txn.target),strcmp(txn.first) eq 0 }}}}")
    for name in expressions:
        chosen = f"{{{{ var(txn.first) -m str {write_plain(name)} }}}}"
        yield write_line(f"{_DENY} if {chosen} {{{{ path -m reg -i -- {{}} }}}}", write_quoted(_SPELLED))
    yield write_line("http-request unset-var(txn.target)")
    yield write_line("http-request set-var(txn.target) var(txn.taken)")


def write_parameter_expression(name: str) -> str:
    """Write the regular expression of a query parameter's name: a client may encode each character."""
    return "".join(f"(?:{re.escape(each)}|%(?i:{ord(each):02x}))" for each in name)


def write_doubt_rules(choice: str, deciding: Iterable[Comparison]) -> Iterator[str]:
    """Deny requests that a Pod may read differently, where a choice's conditions decide about access controls."""
    doubts = dict.fromkeys(doubt for each in deciding for doubt in _find_doubtful(each))
    for doubt in doubts:
        yield write_line(f"{_DENY} if {{{{ var(txn.target) -m str {write_plain(choice)} }}}} {{}}", doubt)


def _find_doubtful(of: Comparison) -> Iterator[Word]:
    match of.aspect:
        case Aspect.METHOD:
            # Some servers read `get` as GET, and all answer HEAD by running GET.
            refused = "^HEAD$|[^A-Z-]" if of.value == "HEAD" else "[^A-Z-]"
            yield Word(f"{{ method -m reg -- {write_quoted(refused)} }}")
        case Aspect.HEADER:
            # Of repeated headers, servers read the first, the last or all. CGI and WSGI do not distinguish `-` and
            # `_`.
            yield Word(f"{{ req.fhdr_cnt({write_plain(of.name)}) gt 1 }}")
            twin = re.sub(r"[^a-z0-9]+", "[^a-z0-9,]", of.name.lower())
            if twin != of.name.lower():
                other = f"(?:^|,)(?!{re.escape(of.name.lower())}(?:,|$)){twin}(?:,|$)"
                yield Word(f"{{ req.hdr_names -m reg -i -- {write_quoted(other)} }}")
        case Aspect.COOKIE:
            yield Word(f"{{ req.cook_cnt({write_plain(of.name)}) gt 1 }}")
            yield Word("{ req.fhdr(cookie) -m sub '\"' }")
        case Aspect.QUERY:
            name = write_parameter_expression(of.name)
            twice = f"(?:^|&){name}(?:=[^&]*)?&(?:.*&)?{name}(?:[=&]|$)"
            otherwise = rf"[;?](?:\+|%20)*{name}(?:[=&;]|$)|(?:^|&)(?:\+|%20)+{name}|(?:^|&){name}(?:\[|%5[bB])"
            broken = f"(?:^|&){name}=[^&]*%(?:00|(?![0-9A-Fa-f]{{2}}))"
            for each in (twice, otherwise, broken):
                yield Word(f"{{ query -m reg -- {write_quoted(each)} }}")
        case Aspect.PATH:
            return
