"""python3 -m millrace.adapters NAME...: serves the environments of these packages."""

import importlib
import pathlib
import sys

from .. import serve


def main() -> None:
    here = pathlib.Path(__file__).parent
    known = sorted(file.stem for file in here.glob("*.py") if not file.stem.startswith("_"))
    names = sys.argv[1:]
    unknown = [name for name in names if name not in known]
    if not names or unknown:
        sys.exit(f"{' '.join(unknown) or 'no name'} is no adapter; the adapters are: {' '.join(known)}")
    for name in names:
        importlib.import_module(f"{__package__}.{name}")
    serve()


# A process that an environment spawns imports this file again.
if __name__ == "__main__":
    main()
