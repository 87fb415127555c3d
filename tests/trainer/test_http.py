"""What the training thread's HTTP makes of servers that do not speak it."""

import asyncio

import aiohttp
import pytest

from rlhf_trainer.comms.http import Background


@pytest.mark.parametrize(
    "answer", [b"not HTTP at all\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n"]
)
def test_no_error_shows_the_token(answer):
    async def speak(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(answer)
        writer.close()

    with Background("secret-of-the-job") as http:
        server = http.run(asyncio.start_server(speak, "127.0.0.1", 0))
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
        for asked in (http.json("POST", url, {}, timeout=10), http.post_bytes(url, b"", timeout=10)):
            with pytest.raises(aiohttp.ClientError) as caught:
                http.run(asked)
            assert "secret-of-the-job" not in repr(caught.value)
            assert url in str(caught.value)
            assert caught.value.__cause__ is None
