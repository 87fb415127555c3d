"""A reward service: exact match with the row's answer, over HTTP. docs/guides/rewards.md has the messages in full.

python examples/rewards/server.py --port 8900
"""

import argparse
from typing import Any

from aiohttp import web


def result(response: dict[str, Any]) -> dict[str, Any]:
    """`{"score": number}`, or `{"error": why}` where the service cannot tell: that is no score of zero."""
    expected = response["row"].get("answer")
    if expected is None:
        return {"error": "the row has no answer to compare with"}
    return {"score": float(response["response"].strip() == expected)}


async def score(request: web.Request) -> web.Response:
    body = await request.json()
    return web.json_response({"results": [result(response) for response in body["responses"]]})


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=8900)
    app = web.Application(client_max_size=64 << 20)
    app.add_routes([web.post("/score", score)])
    web.run_app(app, host="127.0.0.1", port=parser.parse_args().port)


if __name__ == "__main__":
    main()
