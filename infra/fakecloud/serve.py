"""A cloud on this computer: moto's AWS, a real S3 server, and a real machine for each instance. README.md says what is
real and what is not.

    serve.py --folder DIR --image .venv=/opt/millrace/venv

It must be alone in namespaces of its own, as `alone.sh serve.py …` makes them. It writes DIR/cloud.json when all
answer.
"""

import argparse
import json
import logging
import os
import signal
import sys
import threading
import urllib.parse
from pathlib import Path
from typing import Any, Callable

os.environ.setdefault("MOTO_EC2_LOAD_DEFAULT_AMIS", "true")
os.environ.setdefault("MOTO_S3_CUSTOM_ENDPOINTS", "")

# pylint: disable=wrong-import-position
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
from werkzeug.serving import make_server

import access
import control
import images
import instances
import lifecycle
import network
from journal import log
from machines import Settings
from objects import Front, Weed

API, S3, CONTROL, WEED = 4566, 4567, 4568, 14500
JSON_SERVICES = {"secretsmanager", "ssm"}


class Guard:
    """In front of moto: calls with an instance's keys need a right."""

    def __init__(self, application: Callable):
        self.application = application

    def __call__(self, environ: dict[str, Any], start: Callable) -> Any:
        headers = {"Authorization": environ.get("HTTP_AUTHORIZATION", ""),
                   "X-Amz-Security-Token": environ.get("HTTP_X_AMZ_SECURITY_TOKEN")}
        try:
            if headers["Authorization"] and (keys := access.caller(headers)):
                self.judge(keys, environ)
        except access.Refused as error:
            return refusal(error, environ, start)
        return self.application(environ, start)

    def judge(self, keys: access.Keys, environ: dict[str, Any]) -> None:
        body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        from io import BytesIO  # pylint: disable=import-outside-toplevel
        environ["wsgi.input"] = BytesIO(body)
        service = environ["HTTP_AUTHORIZATION"].split("/")[3]
        if target := environ.get("HTTP_X_AMZ_TARGET"):
            name, asked = target.rpartition(".")[2], json.loads(body or b"{}")
        else:
            asked = dict(urllib.parse.parse_qsl(body.decode()))
            name = asked.get("Action", "")
        access.check(keys, f"{service}:{name}", resource_of(service, asked), {}, [])


def resource_of(service: str, asked: dict[str, Any]) -> str:
    """What a call is about, as policies name it; `*` where AWS judges by the action alone."""
    if service == "secretsmanager":
        from moto.secretsmanager.models import secretsmanager_backends  # pylint: disable=import-outside-toplevel
        for backend in secretsmanager_backends[access.ACCOUNT].values():
            for secret in backend.secrets.values():
                if asked.get("SecretId") in (secret.name, secret.arn):
                    return secret.arn
    if service == "autoscaling":
        for group in lifecycle.all_groups():
            members = [state.instance.id for state in group.instance_states]
            if asked.get("AutoScalingGroupName") == group.name or asked.get("InstanceId") in members:
                return group.arn
    return "*"


def refusal(error: access.Refused, environ: dict[str, Any], start: Callable) -> list[bytes]:
    status = "500 Internal Server Error" if error.code == "FakeCloud" else "403 Forbidden"
    if environ.get("HTTP_X_AMZ_TARGET"):
        kind, text = "application/x-amz-json-1.1", json.dumps({"__type": error.code, "message": error.message})
    else:
        kind = "text/xml"
        text = (f"<ErrorResponse><Error><Type>Sender</Type><Code>{error.code}</Code><Message>{error.message}</Message>"
                "</Error><RequestId>0</RequestId></ErrorResponse>")
    start(status, [("Content-Type", kind), ("Content-Length", str(len(text.encode())))])
    return [text.encode()]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True, help="machines, disks, objects and logs")
    parser.add_argument("--image", action="append", default=[], metavar="SOURCE=PLACE",
                        help="a folder that the image of every machine has inside, read-only")
    parser.add_argument("--weed", type=Path, required=True, help="SeaweedFS's program")
    parser.add_argument("--region", default="eu-west-1")
    return parser.parse_args()


def main() -> None:
    asked, stop = arguments(), threading.Event()
    # A blocked signal would be blocked in every machine, too.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    folder = asked.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    network.start()
    endpoints = {"AWS_ENDPOINT_URL": f"http://{network.CLOUD}:{API}",
                 "AWS_ENDPOINT_URL_S3": f"http://{network.CLOUD}:{S3}"}
    places = dict(word.split("=", 1)[::-1] for word in asked.image)
    settings = Settings(folder / "machines", {**endpoints, "AWS_ALLOW_HTTP": "true"},
                        {place: str(Path(source).resolve()) for place, source in places.items()})
    settings.folder.mkdir()
    instances.install(settings)
    lifecycle.install()
    images.install()
    weed = Weed(asked.weed.resolve(), folder / "objects", WEED)
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    application = Guard(DomainDispatcherApplication(create_backend_app))
    api = make_server("0.0.0.0", API, application, threaded=True, request_handler=MotoRequestHandler)
    threading.Thread(target=api.serve_forever, daemon=True).start()
    weed.wait_ready(60)
    Front("0.0.0.0", S3, WEED, API)
    control.serve("127.0.0.1", CONTROL)
    ready = {**endpoints, "control": f"http://127.0.0.1:{CONTROL}", "region": asked.region}
    (folder / "cloud.json.new").write_text(json.dumps(ready), encoding="utf-8")
    (folder / "cloud.json.new").rename(folder / "cloud.json")
    log("cloud up", **ready)
    stop.wait()
    for machine in instances.EVER:
        machine.cut_off()
    weed.kill()
    log("cloud down")
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
