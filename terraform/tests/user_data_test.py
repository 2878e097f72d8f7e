"""The script that instances run at their first start, run for real: against a metadata service and an S3 server that
checks the version 4 signature of each request. One argument: the script that terraform rendered for this test.

The signature is computed as AWS describes it ("Create a signed AWS API request", Signature Version 4), here in Python
and there in curl.
"""

import hashlib
import hmac
import io
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
import unittest
import urllib.parse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

SCRIPT = Path(sys.argv.pop(1)) if len(sys.argv) > 1 else None
TOKEN, ACCESS, SECRET, SESSION = "metadata-token", "ASIAEXAMPLE", "secret/key+0", "session/token=="
INSTALL = '#!/bin/bash\necho "installed by $0" >>"$MILLRACE_ROOT/installed"\n'


def bundle() -> bytes:
    """A release that notes its installation."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as tar:
        info = tarfile.TarInfo("install.sh")
        info.mode, info.size = 0o755, len(INSTALL)
        tar.addfile(info, io.BytesIO(INSTALL.encode()))
    return out.getvalue()


# Made once: its compressed form has the time in it.
BUNDLE = bundle()


def signature(method: str, path: str, headers: dict[str, str], signed: str, scope: str, payload: str) -> str:
    """What the signature of a request without query must be."""
    canonical = "\n".join([method, path, "", *[f"{name}:{headers[name].strip()}" for name in signed.split(";")], "",
                           signed, payload])
    text = "\n".join(["AWS4-HMAC-SHA256", headers["x-amz-date"], scope, hashlib.sha256(canonical.encode()).hexdigest()])
    key = ("AWS4" + SECRET).encode()
    for part in scope.split("/"):
        key = hmac.new(key, part.encode(), hashlib.sha256).digest()
    return hmac.new(key, text.encode(), hashlib.sha256).hexdigest()


class Handler(BaseHTTPRequestHandler):
    """The metadata service below /latest, the S3 server at all other paths."""

    def log_message(self, format: str, *args: object) -> None:
        pass

    def answer(self, code: int, content: bytes = b"") -> None:
        self.send_response(code)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def do_PUT(self) -> None:
        good = self.path == "/latest/api/token" and self.headers["X-aws-ec2-metadata-token-ttl-seconds"]
        self.answer(200, TOKEN.encode()) if good else self.answer(400)

    def do_GET(self) -> None:
        if not self.path.startswith("/latest/"):
            return self.serve_object()
        if self.headers["X-aws-ec2-metadata-token"] != TOKEN:
            return self.answer(401)
        role = "/latest/meta-data/iam/security-credentials/"
        keys = (f'{{\n  "Code" : "Success",\n  "AccessKeyId" : "{ACCESS}",\n  "SecretAccessKey" : "{SECRET}",\n'
                f'  "Token" : "{SESSION}",\n  "Expiration" : "2030-01-01T00:00:00Z"\n}}')
        found = {role: "lake-gpu", role + "lake-gpu": keys}.get(self.path)
        return self.answer(404) if found is None else self.answer(200, found.encode())

    def is_signed(self, payload: str, service: str) -> bool:
        """Whether the request has the signature that it must have; answers it otherwise."""
        headers = {name.lower(): value for name, value in self.headers.items()}
        told = re.fullmatch(r"AWS4-HMAC-SHA256 Credential=([^/]+)/([^,]+), ?SignedHeaders=([^,]+), ?Signature=(\w+)",
                            headers.get("authorization", ""))
        good = (told is not None and told[1] == ACCESS and "x-amz-security-token" in told[3].split(";")
                and told[2].split("/")[1:] == ["us-east-1", service, "aws4_request"]
                and headers["x-amz-security-token"] == SESSION
                and told[4] == signature(self.command, self.path, headers, told[3], told[2], payload))
        if not good:
            self.answer(403, b"SignatureDoesNotMatch")
        return good

    def serve_object(self) -> None:
        self.server.paths.append(self.path)
        if not self.is_signed(self.headers["x-amz-content-sha256"], "s3"):
            return
        content = self.server.contents.pop(0) if len(self.server.contents) > 1 else self.server.contents[0]
        self.answer(503) if content is None else self.answer(200, content)

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.is_signed(hashlib.sha256(body).hexdigest(), "monitoring"):
            self.server.reports.append(urllib.parse.parse_qs(body.decode()))
            self.answer(200)


class FirstStart(unittest.TestCase):
    """An instance without anything, up to its installed release."""

    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = Path(folder.name)
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.paths, self.server.contents, self.server.reports = [], [BUNDLE], []
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.addCleanup(self.server.server_close)
        self.addCleanup(self.server.shutdown)
        self.sha = hashlib.sha256(BUNDLE).hexdigest()

    def run_script(self) -> subprocess.CompletedProcess:
        """Runs it with the hash of this test's bundle in place of the rendered one."""
        url = f"http://127.0.0.1:{self.server.server_address[1]}"
        text = re.sub(r"^release='[0-9a-f]{64}'$", f"release='{self.sha}'", SCRIPT.read_text(), flags=re.MULTILINE)
        self.env = {"PATH": f"{self.root}/bin:{os.environ['PATH']}", "MILLRACE_ROOT": str(self.root),
                    "AWS_ENDPOINT_URL_S3": url, "AWS_EC2_METADATA_SERVICE_ENDPOINT": url + "/", "AWS_ENDPOINT_URL": url}
        return self.run_bash("-c", text)

    def run_bash(self, *arguments: str, **variables: str) -> subprocess.CompletedProcess:
        return subprocess.run(["bash", *arguments], env=self.env | variables, capture_output=True, text=True,
                              timeout=60, check=True)

    def installed(self) -> list[str]:
        path = self.root / "installed"
        return path.read_text().splitlines() if path.exists() else []

    def test_installs_the_release_that_the_hash_names(self) -> None:
        self.run_script()
        self.assertEqual(self.server.paths, [f"/millrace-bucket/releases/{self.sha}.tar.gz"])
        self.assertEqual(os.readlink(self.root / "opt/millrace/current"), str(self.root / "opt/millrace" / self.sha))
        self.assertEqual(len(self.installed()), 1)
        self.assertEqual(sorted(p.name for p in (self.root / "opt/millrace").iterdir()), sorted([self.sha, "current"]))

    def test_says_what_it_is(self) -> None:
        self.run_script()
        path = self.root / "etc/millrace/instance.env"
        self.assertEqual(path.stat().st_mode & 0o777, 0o644)
        lines = path.read_text().splitlines()
        self.assertIn("MILLRACE_ROLE=worker", lines)
        self.assertIn("AWS_REGION=us-east-1", lines)
        self.assertTrue(any(line.startswith("AWS_ENDPOINT_URL_S3=http://127.0.0.1:") for line in lines), lines)
        for line in lines:
            self.assertRegex(line, r"^[A-Z][A-Z0-9_]*=[A-Za-z0-9_.,:/@=+-]*$")

    def test_tells_no_secret(self) -> None:
        done = self.run_script()
        written = [p.read_text(errors="replace") for p in self.root.rglob("*") if p.is_file()]
        for secret in (SECRET, SESSION):
            self.assertFalse(any(secret in text for text in [done.stdout, done.stderr, *written]))

    def test_tries_until_it_has_the_right_content(self) -> None:
        self.server.contents = [None, b"something else", BUNDLE]
        done = self.run_script()
        self.assertEqual(done.stderr.count("no release yet"), 2)
        self.assertEqual(len(self.installed()), 1)

    def test_a_second_run_fetches_nothing(self) -> None:
        self.run_script()
        self.run_script()
        self.assertEqual(len(self.server.paths), 1)
        self.assertEqual(len(self.installed()), 2)

    def test_what_a_cut_run_left_is_replaced(self) -> None:
        half = self.root / "opt/millrace" / f"{self.sha}.new"
        half.mkdir(parents=True)
        (half / "half").write_text("x")
        self.run_script()
        self.assertEqual(sorted(p.name for p in (self.root / "opt/millrace" / self.sha).iterdir()), ["install.sh"])

    def test_reports_how_full_the_data_volume_is(self) -> None:
        (self.root / "run/systemd/system").mkdir(parents=True)
        (self.root / "bin").mkdir()
        for name, text in {"systemctl": 'echo "$@" >>"$MILLRACE_ROOT/systemctl"', "findmnt": "echo /"}.items():
            (self.root / "bin" / name).write_text(f"#!/bin/bash\n{text}\n")
            (self.root / "bin" / name).chmod(0o755)
        self.run_script()
        self.assertIn("enable --now millrace-disk-report.timer", (self.root / "systemctl").read_text())
        report = str(self.root / "opt/millrace/bin/disk-report")
        unit = (self.root / "etc/systemd/system/millrace-disk-report.service").read_text()
        self.assertIn(f"ExecStart={report}\n", unit)
        self.run_bash(report, AWS_REGION="us-east-1", MILLRACE_DATA_DEVICE="/dev/null", MILLRACE_FLEET="lake",
                      MILLRACE_NODE="2")
        self.assertEqual(len(self.server.reports), 1)
        told = {name: value[0] for name, value in self.server.reports[0].items()}
        metric = "MetricData.member.1."
        self.assertEqual((told["Namespace"], told[metric + "MetricName"]), ("Millrace", "DataVolumeUsed"))
        self.assertTrue(0 <= int(told[metric + "Value"]) <= 100)
        names = [told[f"{metric}Dimensions.member.{n}.{word}"] for n in (1, 2) for word in ("Name", "Value")]
        self.assertEqual(names, ["Fleet", "lake", "Node", "2"])

    def test_keys_are_in_no_arguments(self) -> None:
        """Looks at the arguments of all processes while the script waits for S3."""
        seen: list[str] = []
        gate = threading.Event()

        def look() -> None:
            while not gate.is_set():
                for path in Path("/proc").glob("[0-9]*/cmdline"):
                    try:
                        words = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
                    except OSError:
                        continue
                    if "--aws-sigv4" in words and "curl" in words.split(" ")[0]:
                        seen.append(words)
                time.sleep(0.002)

        watcher = threading.Thread(target=look)
        serve = Handler.serve_object

        def slowly(handler: Handler) -> None:
            # Until the arguments have been seen, curl is kept waiting.
            give_up = time.monotonic() + 10
            while not seen and time.monotonic() < give_up:
                time.sleep(0.002)
            serve(handler)

        Handler.serve_object = slowly
        watcher.start()
        try:
            self.run_script()
        finally:
            Handler.serve_object = serve
            gate.set()
            watcher.join()
        self.assertTrue(seen)
        for words in seen:
            self.assertNotIn(SECRET, words)
            self.assertNotIn(SESSION, words)


if __name__ == "__main__":
    if SCRIPT is None:
        sys.exit("usage: user_data_test.py SCRIPT; terraform/test.sh renders one")
    unittest.main()
