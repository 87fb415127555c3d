"""Manifests drawn from the CRD's schema: what a server would store, mostly of little sense."""

import re
from typing import Any

from hypothesis import strategies as st
from tests.unit.api.manifests import document
from tests.unit.api.schema.rules import SPEC

_LIKELY = ("/tmp", "/data", "config", "data", "1Gi", "500m", "a.b:c", "s3://b/p", "http://h/p", "x/y", "7")
Strategy = st.SearchStrategy[Any]

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    # The server writes 4.436372884950875e16 as 44363728849508750, which Python reads as another number.
    | st.floats(allow_nan=False).filter(lambda number: abs(number) < 2**53 or abs(number) >= 1e21)
    | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=6), inner, max_size=2),
    max_leaves=4,
)
TEMPLATES = st.fixed_dictionaries(
    {},
    optional={
        "metadata": st.fixed_dictionaries(
            {},
            optional={"labels": JSON | st.just({"team": "a"}), "name": st.just("mine"), "finalizers": JSON},
        ),
        "spec": st.fixed_dictionaries(
            {},
            optional={
                "containers": JSON
                | st.lists(
                    st.fixed_dictionaries(
                        {"name": st.sampled_from(["role", "proxy", 7])},
                        optional={"image": st.just("i"), "command": st.just(["x"]), "env": JSON},
                    ),
                    max_size=2,
                ),
                "hostname": JSON,
                "volumes": JSON,
                "dnsPolicy": st.just("Default"),
            },
        ),
        "other": JSON,
    },
)


def values(schema: dict[str, Any], name: str = "") -> Strategy:
    """Generates values that the schema allows."""
    if name == "template":
        return TEMPLATES
    if name == "modelCache":  # any other place needs a volume there
        return st.just("/workspace/models")
    match schema.get("type"):
        case "object" if "properties" in schema:
            fields = {key: values(inner, key) for key, inner in schema["properties"].items()}
            required = {key: fields.pop(key) for key in schema.get("required", ())}
            return st.fixed_dictionaries(required).flatmap(
                lambda made: (
                    st.lists(st.sampled_from(sorted(fields)), max_size=3, unique=True).flatmap(
                        lambda keys: st.fixed_dictionaries(
                            {
                                **{key: st.just(value) for key, value in made.items()},
                                **{key: fields[key] for key in keys},
                            }
                        )
                    )
                    if fields
                    else st.just(made)
                )
            )
        case "object":
            inner = schema.get("additionalProperties")
            keys = st.sampled_from(["cpu", "memory", "nvidia.com/gpu", "RLHF_X", "A", "a=b", ""])
            return st.dictionaries(keys, values(inner) if inner else JSON, max_size=2)
        case "array":
            low, high = schema.get("minItems", 0), schema.get("maxItems", 99)
            return st.lists(values(schema["items"]), min_size=low, max_size=min(low + 2, high))
        case "boolean":
            return st.booleans()
        case "integer":
            low, high = schema.get("minimum", -(2**63)), schema.get("maximum", 2**63 - 1)
            return st.sampled_from([1, 2, 64, 300]).filter(lambda n: low <= n <= high) | st.integers(
                low, high - bool(schema.get("exclusiveMaximum"))
            )
        case "number":
            low, high = schema.get("minimum"), schema.get("maximum")
            return st.floats(
                low,
                high,
                allow_nan=False,
                allow_infinity=False,
                exclude_min=schema.get("exclusiveMinimum", False),
            )
    return _texts(schema)


def _texts(schema: dict[str, Any]) -> Strategy:
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    if "pattern" in schema:
        likely = [text for text in _LIKELY if re.search(schema["pattern"], text)]
        high = schema.get("maxLength", 99)
        drawn = st.from_regex(schema["pattern"], fullmatch=True).filter(lambda text: len(text) <= high)
        return st.sampled_from(likely) | drawn
    return st.text(max_size=8)


@st.composite
def manifests(draw: st.DrawFn) -> Any:
    """A valid manifest with up to three sections of its spec drawn anew."""
    made = document()
    for key in draw(
        st.lists(st.sampled_from(sorted(SPEC["properties"])), min_size=1, max_size=3, unique=True)
    ):
        made["spec"][key] = draw(values(SPEC["properties"][key], key))
    data = made["spec"]["data"]  # either names the files
    if data.get("sources"):
        data.pop("train", None)
    else:
        data.setdefault("train", ["prompts.jsonl"])
    return made
