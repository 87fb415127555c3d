"""Fields and types of other projects' kinds that the chart uses; kubernetes-validate has no schema for them."""

from typing import Any

STRING = {"type": "string"}
STRINGS = {"type": "object", "additionalProperties": STRING}
DURATION = {"type": "string", "pattern": "^([0-9]+(ms|s|m|h|d|w|y))+$"}


def _object(required: str = "", **fields: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "required": required.split(),
        "additionalProperties": False,
        "properties": fields,
    }


def _list(items: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "minItems": 1, "items": items}


_ENDPOINT = _object(
    "port path",
    port=STRING,
    path=STRING,
    interval=DURATION,
    honorLabels={"type": "boolean"},
    bearerTokenFile=STRING,
)
_ALERT = _object(
    "alert expr annotations",
    alert=STRING,
    expr=STRING,
    labels=STRINGS,
    annotations=STRINGS,
    **{"for": DURATION},
)
SHAPES = {
    ("monitoring.coreos.com/v1", "ServiceMonitor"): _object(
        "selector endpoints", selector=_object("matchLabels", matchLabels=STRINGS), endpoints=_list(_ENDPOINT)
    ),
    ("monitoring.coreos.com/v1", "PrometheusRule"): _object(
        "groups", groups=_list(_object("name rules", name=STRING, rules=_list(_ALERT)))
    ),
    ("cert-manager.io/v1", "Issuer"): _object("selfSigned", selfSigned=_object()),
    ("cert-manager.io/v1", "Certificate"): _object(
        "secretName dnsNames issuerRef",
        secretName=STRING,
        dnsNames=_list(STRING),
        issuerRef=_object("name", name=STRING, kind=STRING, group=STRING),
    ),
}
"""`spec` by apiVersion and kind."""
