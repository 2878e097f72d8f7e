"""Makes JSON Schemas for kubeconform, without a network: kubeschemas.py OUT.

The resources of Kubernetes come from the OpenAPI document in the module k8s.io/kubernetes, those of KEDA from its
definitions of custom resources. Both modules are fetched by Go and compared with the hashes below. Objects are closed: a
field that the API does not know is an error, as it is for the API server with strict validation.
"""

import json
import pathlib
import subprocess
import sys

import yaml

KUBERNETES = ("k8s.io/kubernetes@v1.34.4", "h1:Yy6R4QB8C9kJPp25GFqEvX5XQwY5qzKeqD0Xx6oAcmk=")
KEDA = ("github.com/kedacore/keda/v2@v2.21.0", "h1:R6z2HZvstK4RLUMxroNACzBj74xGxt3kG59b5Xc+Xps=")
QUANTITY = "resource.Quantity"


def module(name, wanted):
    """The folder of a Go module, checked against its hash."""
    run = subprocess.run(["go", "mod", "download", "-json", name], capture_output=True, text=True, cwd="/")
    answer = json.loads(run.stdout or "{}")
    if run.returncode or "Dir" not in answer:
        sys.exit(f"kubeschemas: Go cannot get {name}: {answer.get('Error') or run.stderr.strip()}")
    if answer["Sum"] != wanted:
        sys.exit(f"kubeschemas: {name} has the hash {answer['Sum']}, and {wanted} is expected")
    return pathlib.Path(answer["Dir"])


def closed(node):
    """The same schema, in which an object has no other fields than those listed."""
    if isinstance(node, list):
        return [closed(item) for item in node]
    if not isinstance(node, dict):
        return node
    if node.get("format") == "int-or-string" or node.get("x-kubernetes-int-or-string"):
        return {"type": ["string", "integer"]}
    result = {key: closed(value) for key, value in node.items()}
    is_object = isinstance(node.get("properties"), dict) and node.get("type", "object") == "object"
    if is_object and not node.get("x-kubernetes-preserve-unknown-fields"):
        result.setdefault("additionalProperties", False)
    return result


def inlined(node, definitions, within=()):
    """The same schema, with each reference replaced by what it refers to. A cycle ends in `anything`."""
    if isinstance(node, list):
        return [inlined(item, definitions, within) for item in node]
    if not isinstance(node, dict):
        return node
    if isinstance(node.get("$ref"), str):
        name = node["$ref"].rsplit("/", 1)[-1]
        if name.endswith(QUANTITY):
            return {"type": ["string", "number"]}
        return {} if name in within else inlined(definitions[name], definitions, (*within, name))
    return {key: inlined(value, definitions, within) for key, value in node.items()}


def write(out, kind, group, version, schema):
    for key in ("apiVersion", "kind"):
        schema.setdefault("properties", {})[key] = {"type": "string"}
    schema["required"] = sorted({*schema.get("required", []), "apiVersion", "kind", "metadata"})
    prefix = group.split(".")[0] + "-" if group else ""
    (out / f"{kind}-{prefix}{version}.json".lower()).write_text(json.dumps(schema))


def main(out):
    out.mkdir(parents=True, exist_ok=True)
    swagger = module(*KUBERNETES) / "api/openapi-spec/swagger.json"
    definitions = json.loads(swagger.read_text())["definitions"]
    for name, definition in definitions.items():
        for kind in definition.get("x-kubernetes-group-version-kind", []):
            if "metadata" not in definition.get("properties", {}) or "apiextensions" in name:
                continue
            schema = closed(inlined(definition, definitions, (name,)))
            write(out, kind["kind"], kind["group"], kind["version"], schema)
    for path in sorted((module(*KEDA) / "config/crd/bases").glob("*.yaml")):
        for resource in filter(None, yaml.safe_load_all(path.read_text())):
            spec = resource["spec"]
            for version in spec["versions"]:
                schema = closed(version["schema"]["openAPIV3Schema"])
                schema["properties"]["metadata"] = {"type": "object"}
                write(out, spec["names"]["kind"], spec["group"], version["name"], schema)
    print(f"{len(list(out.iterdir()))} schemas in {out}")


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
