"""Writes what images are pushed from into a folder, honest sources and hostile ones: image_sources.py FOLDER"""

import gzip
import hashlib
import io
import json
import pathlib
import sys
import tarfile

FOLDER = pathlib.Path(sys.argv[1])


def entry(name, content=b"", **fields):
    info = tarfile.TarInfo(name)
    info.size, info.mode = len(content), 0o644
    for field, value in fields.items():
        setattr(info, field, value)
    return info, io.BytesIO(content)


def folder(name, mode=0o755):
    return entry(name, type=tarfile.DIRTYPE, mode=mode)


def packed(*entries):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for info, content in entries:
            archive.addfile(info, content)
    return buffer.getvalue()


def layout(layers, env):
    """An OCI layout, as files by their paths."""
    files = {"oci-layout": b'{"imageLayoutVersion": "1.0.0"}'}

    def blob(content, kind):
        digest = hashlib.sha256(content).hexdigest()
        files[f"blobs/sha256/{digest}"] = content
        return {"mediaType": kind, "digest": f"sha256:{digest}", "size": len(content)}

    form = "application/vnd.oci.image"
    config = blob(json.dumps({"config": {"Env": env}}).encode(), f"{form}.config.v1+json")
    told = [blob(gzip.compress(layer, mtime=0), f"{form}.layer.v1.tar+gzip") for layer in layers]
    manifest = blob(json.dumps({"config": config, "layers": told}).encode(), f"{form}.manifest.v1+json")
    other = {**manifest, "platform": {"os": "linux", "architecture": "s390x"}}
    own = [{**manifest, "platform": {"os": "linux", "architecture": arch}} for arch in ("amd64", "arm64")]
    index = blob(json.dumps({"manifests": [other, *own]}).encode(), f"{form}.index.v1+json")
    files["index.json"] = json.dumps({"manifests": [index]}).encode()
    return files


below = packed(
    folder("./"),
    folder("data"),
    entry("data/kept", b"below\n"),
    entry("data/gone", b"below\n"),
    entry("data/changed", b"below\n"),
    entry("data/secret", b"for its owner\n", mode=0),
    entry("covered/old", b"below\n"),
    entry("covered/older/old", b"below\n"),
    entry("replaced/old", b"below\n"),
    entry("data/first", b"twice\n"),
    entry("data/second", type=tarfile.LNKTYPE, linkname="data/first"),
    entry("data/absolute", type=tarfile.SYMTYPE, linkname="/data/kept"),
    entry("data/climbs", type=tarfile.SYMTYPE, linkname="../../../../../../data/kept"),
    entry("long/" + "x" * 120 + "/" + "y" * 120, b"long\n"),
)
above = packed(
    entry("data/.wh.gone"),
    entry("data/changed", b"above\n"),
    entry("covered/new", b"above\n"),
    entry("covered/.wh..wh..opq"),
    entry(".wh.replaced"),
    entry("replaced/new", b"above\n"),
)
files = layout([below, above], ["GREETING=hello=world", "PATH=/usr/bin:/bin"])
for name, content in files.items():
    path = FOLDER / "layout" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
(FOLDER / "layout.tar").write_bytes(packed(*(entry(name, content) for name, content in files.items())))
# Much that is little while it is packed: unpacking it takes a while.
many = packed(*(entry(f"many/{number}", b"x" * 10_000) for number in range(20_000)))
(FOLDER / "many.tar.gz").write_bytes(gzip.compress(many, compresslevel=1, mtime=0))

device = {"type": tarfile.CHRTYPE, "devmajor": 1, "devminor": 3}
HOSTILE = {
    "climbs": [entry("../escaped", b"x")],
    "climbs-within": [entry("a/../../escaped", b"x")],
    "absolute": [entry("/escaped", b"x")],
    "through-absolute-symlink": [entry("out", type=tarfile.SYMTYPE, linkname=str(FOLDER)), entry("out/escaped", b"x")],
    "through-climbing-symlink": [entry("out", type=tarfile.SYMTYPE, linkname="../" * 30 + str(FOLDER)[1:]), entry("out/escaped", b"x")],
    "link-out": [entry("out", type=tarfile.LNKTYPE, linkname="../" * 30 + "etc/passwd")],
    "link-absolute": [entry("out", type=tarfile.LNKTYPE, linkname="/etc/passwd")],
    "link-to-nothing": [entry("out", type=tarfile.LNKTYPE, linkname="etc/passwd")],
    "link-through-symlink": [entry("etc", type=tarfile.SYMTYPE, linkname="/etc"), entry("out", type=tarfile.LNKTYPE, linkname="etc/passwd")],
    "device": [entry("null", **device)],
    "setuid": [entry("su", b"x", mode=0o4755)],
    "setgid": [entry("su", b"x", mode=0o2755)],
    "whiteout-climbs": [entry("a/.wh..."), entry("b/.wh..")],
    "whiteout-of-above": [entry(".wh..")],
}
hostile = FOLDER / "hostile"
hostile.mkdir()
for name, entries in HOSTILE.items():
    (hostile / f"{name}.tar").write_bytes(packed(*entries))
(hostile / "cut.tar.gz").write_bytes(gzip.compress(below, mtime=0)[:-20])
(hostile / "no-tar.tar.zst").write_bytes(b"\x28\xb5\x2f\xfd no tar at all")
