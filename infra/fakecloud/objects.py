"""S3: a real server (SeaweedFS) holds the objects, moto the settings of buckets; policies are checked before both.

Conditional writes of SeaweedFS hold under a race; those of moto do not.
"""

import http.client
import os
import re
import subprocess
import threading
import time
import urllib.parse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from xml.sax.saxutils import escape

import access
from journal import log
from moto.s3.models import s3_backends

# What a bucket's query asks of its settings; everything else is about objects.
SETTINGS = {"accelerate", "acl", "analytics", "cors", "encryption", "intelligent-tiering", "inventory", "lifecycle",
            "location", "logging", "metrics", "notification", "object-lock", "ownershipControls", "policy",
            "policyStatus", "publicAccessBlock", "replication", "requestPayment", "tagging", "versioning", "website"}
HOP = {"connection", "keep-alive", "transfer-encoding", "te", "upgrade", "expect"}
NOT_FOUND = 404
# Every request goes into the log.
DEBUG = bool(os.environ.get("FAKECLOUD_DEBUG"))


class Weed:
    """The S3 server, on addresses of this computer alone."""

    def __init__(self, program: Path, folder: Path, port: int):
        self.port = port
        folder.mkdir(parents=True)
        self.ports = {name: port + number for number, name in enumerate(
            ["s3.port", "s3.port.grpc", "master.port", "master.port.grpc", "volume.port", "volume.port.grpc",
             "filer.port", "filer.port.grpc", "admin.port", "admin.port.grpc"])}
        words = [f"-dir={folder}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-master.telemetry=false", "-admin.ui=false",
                 "-webdav=false", "-s3.port.iceberg=0", "-s3.port.lance=0",
                 *(f"-{name}={number}" for name, number in self.ports.items())]
        # Its logs lie in the folder for temporary files, and stay there.
        with open(folder.parent / "weed.log", "ab") as output:
            self.process = subprocess.Popen([program, "mini", *words], stdout=output, stderr=output,
                                            env={"PATH": "/usr/bin:/bin", "HOME": str(folder), "TMPDIR": str(folder.parent)})

    def kill(self) -> None:
        self.process.kill()
        # It leaves its sockets there.
        for name, number in self.ports.items():
            part = name.replace(".port", "").replace(".grpc", "-grpc")
            Path(f"/tmp/seaweedfs-{part}-{number}.sock").unlink(missing_ok=True)

    def is_ready(self) -> bool:
        try:
            return send(self.port, "GET", "/", {}, b"")[0] == 200
        except OSError:
            return False

    def wait_ready(self, patience: float) -> None:
        give_up = time.monotonic() + patience
        while not self.is_ready():
            if self.process.poll() is not None or time.monotonic() > give_up:
                raise RuntimeError("the S3 server does not start; see weed.log")
            time.sleep(0.1)


def send(port: int, method: str, path: str, headers: dict[str, str], body: bytes) -> tuple[int, list, bytes]:
    """One request to a server of this computer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    try:
        connection.request(method, path, body=body, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.getheaders(), answer.read()
    finally:
        connection.close()


def action_of(method: str, key: str, query: dict[str, str]) -> str:
    """The right that a request about objects needs."""
    if not key:
        return "s3:ListBucketVersions" if "versions" in query else "s3:ListBucket"
    if "tagging" in query:
        return {"GET": "s3:GetObjectTagging", "PUT": "s3:PutObjectTagging"}.get(method, "s3:DeleteObjectTagging")
    if method == "DELETE":
        return "s3:AbortMultipartUpload" if "uploadId" in query else "s3:DeleteObject"
    if "uploadId" in query and method == "GET":
        return "s3:ListMultipartUploadParts"
    return "s3:GetObject" if method in ("GET", "HEAD") else "s3:PutObject"


def policy_of(bucket: str) -> list[object]:
    found = s3_backends[access.ACCOUNT]["aws"].buckets.get(bucket)
    return [found.policy] if found is not None and found.policy else []


class Handler(BaseHTTPRequestHandler):
    """One request of a client. `weed` and `moto` are the server's: ports."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        """Refusals are in the journal."""

    def body(self) -> bytes:
        if "chunked" in self.headers.get("Transfer-Encoding", ""):
            parts = []
            while size := int(self.rfile.readline().split(b";")[0], 16):
                parts.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(parts)
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def answer(self, status: int, headers: list, body: bytes) -> None:
        self.send_response_only(status)
        length = None
        for name, value in headers:
            if name.lower() == "content-length":
                length = value
            elif name.lower() not in HOP:
                self.send_header(name, value)
        self.send_header("Content-Length", length if self.command == "HEAD" and length else str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def refuse(self, error: access.Refused) -> None:
        status = 500 if error.code == "FakeCloud" else 403
        text = f"<Error><Code>{error.code}</Code><Message>{escape(error.message)}</Message></Error>"
        self.answer(status, [("Content-Type", "application/xml")], text.encode())

    def handle_all(self) -> None:
        body = self.body()
        url = urllib.parse.urlsplit(self.path)
        query = dict(urllib.parse.parse_qsl(url.query, keep_blank_values=True))
        bucket, _, key = urllib.parse.unquote(url.path).lstrip("/").partition("/")
        try:
            keys = access.caller(self.headers)
            self.judge(keys, bucket, key, query, body)
            status, headers, content = self.forward(bucket, key, query, body)
            if status == NOT_FOUND and key and self.command in ("GET", "HEAD"):
                # Who may not list is not told what is missing.
                access.check(keys, "s3:ListBucket", f"arn:aws:s3:::{bucket}", self.context(query), policy_of(bucket))
        except access.Refused as error:
            self.refuse(error)
            return
        except (OSError, KeyError, TypeError, ValueError) as error:
            log("S3 request failed", method=self.command, path=self.path, error=repr(error))
            self.refuse(access.Refused("FakeCloud", repr(error)))
            return
        if DEBUG:
            print(f"{time.time():.3f} S3 {self.command} {self.path} {len(body)} -> {status}", flush=True)
        self.answer(status, headers, content)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = handle_all

    def context(self, query: dict[str, str]) -> dict[str, str]:
        """What conditions ask. The endpoint stands for one with TLS."""
        found = {"aws:SecureTransport": "true"}
        if "If-None-Match" in self.headers:
            found["s3:if-none-match"] = self.headers["If-None-Match"]
        if "prefix" in query:
            found["s3:prefix"] = query["prefix"]
        return found

    def judge(self, keys: access.Keys | None, bucket: str, key: str, query: dict[str, str], body: bytes) -> None:
        arn, policy, context = f"arn:aws:s3:::{bucket}", policy_of(bucket), self.context(query)
        if not key and (not bucket or SETTINGS & set(query) or (self.command in ("PUT", "DELETE") and not query)):
            if keys:
                raise access.Refused("AccessDenied", "instances may not change or read a bucket's settings here")
            return
        if not key and "delete" in query:
            for name in re.findall(rb"<Key>(.*?)</Key>", body):
                access.check(keys, "s3:DeleteObject", f"{arn}/{name.decode()}", context, policy)
            return
        access.check(keys, action_of(self.command, key, query), f"{arn}/{key}" if key else arn, context, policy)
        if source := self.headers.get("x-amz-copy-source"):
            access.check(keys, "s3:GetObject", f"arn:aws:s3:::{urllib.parse.unquote(source).lstrip('/')}", context, [])

    def forward(self, bucket: str, key: str, query: dict[str, str], body: bytes) -> tuple[int, list, bytes]:
        headers = {name: value for name, value in self.headers.items() if name.lower() not in HOP}
        headers["Content-Length"] = str(len(body))
        if key or (bucket and not SETTINGS & set(query) and (query or self.command in ("GET", "HEAD", "POST"))):
            # SeaweedFS has no users here: who may what is decided above.
            headers.pop("Authorization", None)
            headers.pop("authorization", None)
            return send(self.server.weed, self.command, self.path, headers, body)
        if self.command in ("PUT", "DELETE") and not query:
            made = send(self.server.weed, self.command, f"/{bucket}", {"Content-Length": "0"}, b"")
            if made[0] >= 300 and made[0] != NOT_FOUND:
                return made
            log("bucket", name=bucket, method=self.command)
        return send(self.server.moto, self.command, self.path, headers, body)


class Front(ThreadingHTTPServer):
    """The S3 endpoint."""

    daemon_threads = True
    request_queue_size = 256

    def __init__(self, address: str, port: int, weed: int, moto: int):
        super().__init__((address, port), Handler)
        self.weed, self.moto = weed, moto
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def handle_error(self, *_: object) -> None:
        """A client that leaves in the middle of a request is none of ours."""
