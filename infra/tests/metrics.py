"""The metrics that the code exports, with their labels, and those that an expression uses."""

import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
# Labels that Prometheus adds to every series, or an operator by the scrape's configuration.
OF_TARGETS = {"instance", "job", "namespace", "fleet"}


def exported():
    """Metric to labels, as the code of coordinators and workers has them."""
    found = {}
    for folder in ("broker", "workers/src"):
        for path in (ROOT / folder).rglob("*.rs"):
            text = path.read_text().split("#[cfg(test)]\nmod tests")[0]
            for call in re.finditer(r"metrics::(?:counter|gauge|histogram)!\((.*?)\)\s*[.;]", text, re.S):
                body = call.group(1)
                literal = re.search(r'"(millrace_\w+)"', body)
                if literal is None:
                    continue  # A counter of a run: they are declared in one place.
                name = literal[1]
                found.setdefault(name, set()).update(re.findall(r'"(\w+)"\s*=>', body))
                if "&labels" in body:
                    # The nearest `let labels = [("run", …), …]`, also as the first of a tuple.
                    start = max(text.rfind(word, 0, call.start()) for word in ("let labels", "let (labels"))
                    declared = text[start:text.index(";", start)]
                    found[name].update(re.findall(r'\("(\w+)",', declared))
    declared = (ROOT / "schemas/src/counters.rs").read_text()
    for name, label in re.findall(r'\w+: "(millrace_\w+)", (?:None|Some\(\("(\w+)")', declared):
        found.setdefault(name, set()).update({"run", label} - {""})
    return found


def used(expression):
    """Metric to labels, as an expression matches them. Histograms count as their name."""
    found = {}
    for match in re.finditer(r"\b(millrace_[a-z0-9_]+)\b(?:\{([^}]*)\})?", expression):
        labels = set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", match[2] or ""))
        found.setdefault(match[1], set()).update(labels)
    return found


def faults(expression, known):
    """What an expression uses and nothing exports."""
    for name, labels in used(expression).items():
        if name not in known:
            yield f"{name} is no metric of the code"
        else:
            yield from (f"{name} has no label {label}" for label in sorted(labels - known[name] - OF_TARGETS))


def grouped(expression):
    """Labels by which an expression groups."""
    lists = re.findall(r"\b(?:by|on)\s*\(([^)]*)\)", expression)
    return {label.strip() for labels in lists for label in labels.split(",")}
