"""Agent programs of these tests, one by its name as argument. They ask the policy over HTTP alone, as it is quick to
start; `openai` and `streaming` do by OpenAI's own client."""

import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

Message = dict[str, Any]
ROW = json.load(sys.stdin)
OPENING: list[Message] = [{"role": "user", "content": "A number from 1 to 9?"}]


def post(messages: list[Message], **fields: Any) -> Any:
    request = urllib.request.Request(
        os.environ["OPENAI_BASE_URL"] + "/chat/completions",
        json.dumps({"model": "m", "messages": messages, **fields}).encode(),
        {"Authorization": f"Bearer {fields.pop('key', os.environ['OPENAI_API_KEY'])}"},
    )
    try:
        with urllib.request.urlopen(request) as reply:
            return json.load(reply)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)["error"]["message"]


def ask(messages: list[Message], **fields: Any) -> str:
    """The policy's turn, which joins the messages."""
    reply = post(messages, **fields)
    if isinstance(reply, tuple):
        raise RuntimeError(reply[1])
    messages.append(reply["choices"][0]["message"])
    return str(messages[-1]["content"])


def end(reward: Any) -> None:
    print(json.dumps({"reward": reward}))


def judge(guess: str) -> str:
    """Higher, lower, or nothing where it is right."""
    number, secret = int(guess), ROW.get("secret", 5)
    return "" if number == secret else "Higher." if number < secret else "Lower."


def guess() -> None:
    """The game of `games.Guess`, with a reward at the end."""
    messages, reward = [*OPENING], 1.0
    while reply := judge(ask(messages)):
        messages.append({"role": "user", "content": reply})
        reward += 0.25
    end(reward)


def openai() -> None:
    from openai import OpenAI

    client, messages, reward = OpenAI(), [*OPENING], 1.0
    assert [model.id for model in client.models.list()] == ["policy"]
    while True:
        reply = client.chat.completions.create(model="any", messages=messages, temperature=0.5)  # type: ignore[arg-type]
        message = reply.choices[0].message
        assert reply.choices[0].finish_reason == "stop"
        assert reply.usage is not None
        assert reply.usage.completion_tokens == 2
        messages.append(message)  # type: ignore[arg-type]
        if not (further := judge(str(message.content))):
            break
        messages.append({"role": "user", "content": further})
        reward += 0.25
    end(reward)


def streaming() -> None:
    from openai import OpenAI

    client, messages, reward = OpenAI(), [*OPENING], 1.0
    while True:
        options: Any = {"stream": True, "stream_options": {"include_usage": True}}
        chunks = [*client.chat.completions.create(model="any", messages=messages, **options)]
        text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
        assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == "stop"
        assert chunks[-1].usage.completion_tokens == 2
        messages.append({"role": "assistant", "content": text})
        if not (further := judge(text)):
            break
        messages.append({"role": "user", "content": further})
        reward += 0.25
    end(reward)


TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]


def tools() -> None:
    from openai import OpenAI

    client, messages = OpenAI(), [*OPENING]
    stream = ROW.get("stream", False)
    if stream:
        chunks = [*client.chat.completions.create(model="m", messages=messages, tools=TOOLS, stream=True)]  # type: ignore
        assert chunks[-1].choices[0].finish_reason == "tool_calls"
        delta = chunks[0].choices[0].delta
        call = delta.tool_calls[0]
        assert call.index == 0
        messages.append(
            {
                "role": "assistant",
                "content": delta.content,
                "tool_calls": [call.model_dump(exclude={"index"})],
            }
        )
    else:
        choice = client.chat.completions.create(model="m", messages=messages, tools=TOOLS).choices[0]  # type: ignore
        assert choice.finish_reason == "tool_calls"
        messages.append(choice.message)  # type: ignore
        (call,) = choice.message.tool_calls
    total = sum(json.loads(call.function.arguments).values())
    messages.append({"role": "tool", "tool_call_id": call.id, "content": str(total)})
    last = client.chat.completions.create(model="m", messages=messages, tools=TOOLS)  # type: ignore
    end(float(last.choices[0].message.content == str(total)))


def cut() -> None:
    """Is told that the episode is over, and gives what reward there is."""
    messages, reward = [*OPENING], 0.0
    while not isinstance(reply := post(messages), tuple):
        reward += 0.25
        messages += [reply["choices"][0]["message"], {"role": "user", "content": "On."}]
    assert reply[0] == 400
    assert "the episode is over" in reply[1]
    end(reward)


def asks_on() -> None:
    messages = [*OPENING]
    while True:
        ask(messages)
        messages.append({"role": "user", "content": "On."})


def rewrites() -> None:
    messages = [*OPENING]
    ask(messages)
    ask([*OPENING, {"role": "assistant", "content": "Other."}, {"role": "user", "content": "On."}])
    end(1.0)


def forgets() -> None:
    messages = [*OPENING]
    ask(messages)
    ask([{"role": "user", "content": "Summary."}])
    end(1.0)


def asks_again() -> None:
    ask([*OPENING])
    ask([*OPENING])
    end(1.0)


def adds_a_turn() -> None:
    messages = [*OPENING]
    ask(messages)
    ask([*messages, {"role": "assistant", "content": "Mine."}, {"role": "user", "content": "On."}])
    end(1.0)


def changes_tools() -> None:
    messages = [*OPENING]
    ask(messages)
    ask([*messages, {"role": "user", "content": "On."}], tools=TOOLS)
    end(1.0)


def asks_aside() -> None:
    """A second conversation, which a branch of its own goes on with, and then the first one again."""
    main, aside = [*OPENING], [{"role": "user", "content": "Aside."}]
    ask(main)
    ask(aside)
    aside.append({"role": "user", "content": "More."})
    ask(aside)
    main.append({"role": "user", "content": "On."})
    ask(main)
    end(1.0)


def writes_at_length() -> None:
    ask([*OPENING])
    post([{"role": "user", "content": "x" * 300}])
    end(1.0)


def fails() -> None:
    ask([*OPENING])
    sys.exit("no such module")


def gives_nothing() -> None:
    ask([*OPENING])


def gives_nan() -> None:
    ask([*OPENING])
    end(float("nan"))


def asks_nothing() -> None:
    end(1.0)


def hangs() -> None:
    ask([*OPENING])
    time.sleep(3600)


def refused() -> None:
    """What is refused costs nothing: the episode goes on."""
    for fields, words in (
        ({"n": 2}, "n: an environment's turns have no such thing; use nothing or 1; got 2"),
        ({"logprobs": True}, "logprobs: "),
        ({"response_format": {"type": "json_object"}}, "response_format: "),
        ({"tools": [{"type": "function"}]}, "tools.0.function: Field required"),
    ):
        assert words in post(OPENING, **fields)[1], fields
    assert (
        "the parts of a message must be text" in post([{"role": "user", "content": [{"type": "image"}]}])[1]
    )
    assert post(OPENING, key="sk-other")[0] == 401
    assert ask([*OPENING]) == "5"
    end(1.0)


def leave_child() -> None:
    """A child in a session of its own, with the row's file among its arguments."""
    Path(ROW["child"]).touch()
    command = [sys.executable, "-c", "import time; time.sleep(3600)", ROW["child"]]
    subprocess.Popen(command, start_new_session=True)


def runs() -> None:
    """Opens with what the row's code names `result`."""
    names = dict[str, Any]()
    exec(ROW["code"], names)
    ask([{"role": "user", "content": str(names["result"])}])
    end(1.0)


def spawns() -> None:
    leave_child()
    guess()


def waits_once() -> None:
    """With a child; the row's file says so."""
    if not Path(ROW["child"]).exists():
        leave_child()
        ask([*OPENING])
        time.sleep(3600)
    guess()


if __name__ == "__main__":
    globals()[sys.argv[1]]()
