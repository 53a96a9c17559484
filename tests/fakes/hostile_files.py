"""Files that a folder of manifests may contain by accident or malice, none of them a manifest."""

import json
import os
import socket
from pathlib import Path
from typing import Any, Final

_LISTS: Final = "".join(
    f"- &{chr(98 + each)} {{kind: List, apiVersion: v1, items: [{', '.join(['*' + chr(97 + each)] * 8)}]}}\n"
    for each in range(8)
)
TEXTS: Final[dict[str, tuple[str | bytes, str]]] = {
    "template.yaml": ("kind: Service\nmetadata: {\n  name: {{ .Release.Name }}\n", "line 3, column 10"),
    "mapping-as-key.yaml": ("{a: b}: c\n", "line 1, column 1"),
    "list-as-key.yaml": ("a: 1\n? [b]\n: c\n", "line 2, column 3"),
    "twice.yaml": ("a: 1\nb: 2\na: 3\n", "line 3, column 1"),
    "twice.json": ('{"a": 1, "a": 2}', "line 1, column 1"),
    "brackets.yaml": ("[" * 100_000, "line 1, column 101"),
    "dashes.yaml": ("- " * 100_000, "line 1, column 201"),
    "questions.yaml": ("? " * 100_000, "line 1, column 3"),
    "brackets.json": ("[" * 100_000, "line 1, column 1"),
    "lists-of-lists.yaml": (
        f"kind: List\napiVersion: v1\nitems:\n- &a {{kind: List, items: [1, 2]}}\n{_LISTS}",
        "line ",
    ),
    "alias-in-itself.yaml": ("a: &a [*a]\n", "line 1, column 8"),
    "number.json": ('\n{"a": ' + "9" * 5000 + "}", "line 2, column 1"),
    "object.yaml": ("a: !!python/object/apply:os.system [id]\n", "line 1, column 4"),
    "timestamp.yaml": ("a: !!timestamp 2026-99-99\n", "line 1, column 4"),
    "bool.yaml": ("a: !!bool perhaps\n", "line 1, column 4"),
    "nan.yaml": ("a: .nan\n", "line 1, column 4"),
    "infinite.yaml": ("a: -.inf\n", "line 1, column 4"),
    "merge.yaml": ("<<: 5\n", "line 1, column 5"),
    "tags.yaml": ("".join(f"%TAG !a{each}! x\n" for each in range(200_000)) + "--- a\n", "YAML"),
    "utf-16.yaml": ("kind: Service\n".encode("utf-16"), "line 1, column 1"),
    "latin-1.yaml": (b"a: 1\nb: \xe4\n", "line 2, column 4"),
    "zeros.yaml": ("a: \0\n", "line 1, column 4"),
    "binary.yaml": (bytes(range(256)), "line "),
    "tab.yaml": ("a:\n\tb: 1\n", "line 2, column 1"),
    "empty-objects.json": (
        '{"kind": "List", "apiVersion": "v1", "items": [' + "{}," * 499_999 + "{}]}",
        "document 1",
    ),
    "without-names.json": ('{"kind": "Service", "apiVersion": "v1"}\n' * 50_000, "document 1001"),
    "huge.json": (b"", ""),
    b"\xff\n\x1b[31m.yaml".decode(errors="surrogateescape"): ("{a: b}: c\n", "line 1, column 1"),
}
"""Content of each, and the beginning of the reported place."""
ODD: Final = (
    "pipe.yaml",
    "socket.json",
    "device.yml",
    "folder.yaml",
    "loop.yaml",
    "lost.yaml",
    "zeros-for-ever.yaml",
)
NAMES: Final = (*TEXTS, *ODD)


def plant(folder: Path) -> None:
    for name, (content, _) in TEXTS.items():
        (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    os.truncate(folder / "huge.json", 1 << 33)
    os.mkfifo(folder / "pipe.yaml")
    with socket.socket(socket.AF_UNIX) as listening:
        here = Path.cwd()
        os.chdir(folder)  # a socket's path must be short
        listening.bind("socket.json")
        os.chdir(here)
    os.mknod(folder / "device.yml", 0o20600, os.makedev(1, 5))
    (folder / "folder.yaml").mkdir()
    (folder / "loop.yaml").symlink_to("loop.yaml")
    (folder / "lost.yaml").symlink_to("nowhere")
    (folder / "zeros-for-ever.yaml").symlink_to("/proc/self/mem")


def mend(folder: Path, name: str, *objects: dict[str, Any]) -> None:
    """Replace one by a file of these objects."""
    path = folder / name
    if path.is_dir() and not path.is_symlink():
        path.rmdir()
    documents = [json.dumps(each) for each in objects]  # JSON is YAML too
    (folder / ".mended").write_text(("\n" if name.endswith(".json") else "\n---\n").join(documents), encoding="utf-8")
    (folder / ".mended").replace(path)


def place_of(name: str) -> str:
    """Return the beginning of a file's reported place; "" without one."""
    return TEXTS[name][1] if name in TEXTS else ""
