"""Runs one target: `python -m tests.fuzz.worker TARGET INPUTS SECONDS SEED FOLDER`."""

import importlib.util
import random
import sys
import time
import traceback
from pathlib import Path

from tests.fuzz.targets import Target, targets

_LONGEST = 2048


def _found(name: str) -> Target:
    return next(each for each in targets(f"tests.fuzz.{name.partition('::')[0]}") if each.name == name)


def guided(name: str, options: list[str]) -> None:
    """Let atheris search for bytes that reach new code of vipwire. Does not return."""
    import atheris  # noqa: PLC0415 - where it is installed

    with atheris.instrument_imports(include=["vipwire"]):
        target = _found(name)
    atheris.Setup([name, *options], target.call)
    atheris.Fuzz()


def unguided(name: str, inputs: int, seconds: float, seed: int, folder: Path) -> None:
    """Feed random bytes."""
    target, chance = _found(name), random.Random(f"{seed} {name}")  # noqa: S311 - so that it can be had again
    limit = time.monotonic() + seconds
    done = 0
    while done < inputs and time.monotonic() < limit:
        data = chance.randbytes(chance.randrange(_LONGEST))
        try:
            target.call(data)
        except BaseException:  # noqa: BLE001 - whatever it is, its bytes are kept
            traceback.print_exc()
            file = folder / f"{name.replace('::', '-')}-{done}"
            file.write_bytes(data)
            sys.exit(f"inputs: {done + 1}\nfailed with {file}")
        done += 1
    print(f"inputs: {done}")


def main() -> None:
    name, inputs, seconds, seed, folder = sys.argv[1:]
    if importlib.util.find_spec("atheris") is None:
        unguided(name, int(inputs), float(seconds), int(seed), Path(folder))
        return
    prefix = Path(folder) / f"{name.replace('::', '-')}-"
    options = [f"-runs={inputs}", f"-max_total_time={max(1, int(float(seconds)))}", f"-seed={seed}"]
    guided(name, [*options, f"-max_len={_LONGEST}", f"-artifact_prefix={prefix}", "-print_final_stats=1"])


if __name__ == "__main__":
    main()
