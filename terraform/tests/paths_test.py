"""The paths of the object store that the code makes, and the rights that the instances' roles have to paths: each path is
covered by a right, and each right covers a path. Two arguments: the file that makes the paths, and the table of rights.
"""

import fnmatch
import re
import sys
from pathlib import Path


def made(source: str) -> set[str]:
    """The paths that the code makes, with * for what varies. Folders of other paths are left out."""
    code = source.split("#[cfg(test)]")[0]
    folder = dict(re.findall(r'pub const (\w+): &str = "([^"]*)"', code))
    texts = re.findall(r'"([a-z{][^" ]*/[^" ]*)"', code)
    paths = {re.sub(r"\{[^}]*\}", "*", re.sub(r"\{([A-Z_]+)\}", lambda found: folder[found[1]], text)).rstrip("/") for text in texts}
    return {path for path in paths if not any(other.startswith(path + "/") for other in paths)}


def rights(source: str) -> set[str]:
    """The paths of the table."""
    table = source[source.index("locals {"):source.index("paths = {")]
    return set(re.findall(r'"([a-z][^" ]*/[^" ]*)"', table))


def main() -> None:
    paths, allowed = made(Path(sys.argv[1]).read_text("utf-8")), rights(Path(sys.argv[2]).read_text("utf-8"))
    if len(paths) < 4:
        sys.exit(f"{sys.argv[1]} makes {sorted(paths)} alone: this test reads it wrongly")
    faults = [f"no role has a right to {path}" for path in sorted(paths)
              if not any(fnmatch.fnmatchcase(path, right) for right in allowed)]
    faults += [f"{right} is a right to nothing that the code makes" for right in sorted(allowed)
               if not any(fnmatch.fnmatchcase(path, right) for path in paths)]
    if faults:
        sys.exit("\n".join(faults))
    print("\n".join(sorted(paths)))


if __name__ == "__main__":
    main()
