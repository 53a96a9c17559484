"""The archive of first files, read as the kernel reads it (init/initramfs.c)."""

from collections.abc import Iterator

from hypothesis import given
from hypothesis import strategies as st

from vipwire_lab.guest_kernel.machines import build_cpio_archive

NAMES = st.text("abc-_/.", min_size=1, max_size=12)


def entries(data: bytes) -> Iterator[tuple[str, int, bytes]]:
    """Read names, modes and contents; everything begins at a multiple of four."""
    at = 0
    while True:
        assert data[at : at + 6] == b"070701"
        fields = [int(data[at + 6 + 8 * each : at + 14 + 8 * each], 16) for each in range(13)]
        size, length = fields[6], fields[11]
        name = data[at + 110 : at + 109 + length].decode()
        start = -(-(at + 110 + length) // 4) * 4
        if name == "TRAILER!!!":
            assert start == len(data)
            return
        yield name, fields[1], data[start : start + size]
        at = -(-(start + size) // 4) * 4


@given(st.lists(NAMES), st.lists(st.tuples(NAMES, st.binary(max_size=9))))
def test_the_kernel_finds_every_folder_and_file_in_order(
    folders: list[str], programs: list[tuple[str, bytes]]
) -> None:
    expected = [(name, 0o040755, b"") for name in folders]
    expected += [(name, 0o100755, content) for name, content in programs]
    assert list(entries(build_cpio_archive(folders, programs))) == expected


def test_every_entry_has_a_number_of_its_own_so_that_none_is_taken_for_a_link() -> None:
    data = build_cpio_archive(["a", "b"], [("c", b"x")])
    heads = [at for at in range(0, len(data), 4) if data[at : at + 6] == b"070701"]
    numbers = [data[at + 6 : at + 14] for at in heads]
    assert len(set(numbers)) == len(numbers) == 4
