"""`nanoserve chat` as a process: in a terminal, from a pipe, with the embedded model and with a server."""

from __future__ import annotations

from nanoserve.entrypoints.offline import LLM, SamplingParams
from tests.patience import wait_until
from tests.process.command import run
from tests.process.terminal import terminal
from tests.unit.entrypoints.timed_server import Behaviour, timed_server

GREEDY = ("--temperature", "0", "--max-tokens", "24")


def test_a_piped_conversation_is_what_the_model_says(llm: LLM) -> None:
    params = SamplingParams(temperature=0, max_tokens=24)
    talk = [{"role": "user", "content": "Hello!"}]
    first = llm.chat(talk, params, use_tqdm=False)[0].outputs[0].text
    talk += [{"role": "assistant", "content": first}, {"role": "user", "content": "Tell me a story."}]
    second = llm.chat(talk, params, use_tqdm=False)[0].outputs[0].text
    done = run("chat", *GREEDY, stdin=b"Hello!\nTell me a story.\n/stats\n")
    assert done.returncode == 0, done.stderr.decode()
    assert done.stdout.decode() == f"{first}\n{second}\n"
    assert b"tok/s" in done.stderr


def test_a_conversation_in_a_terminal_whose_answers_ctrl_c_stops() -> None:
    endless = {"NANOSERVE_IGNORE_EOS": "1"}
    with terminal("chat", "--temperature", "1", "--seed", "1", extra=endless) as screen:
        place = screen.wait_for("> ", after=screen.wait_for("7 million parameters"))
        screen.type("Tell me a story.\r")
        place = screen.wait_for_more(than=screen.wait_for("story.\n", after=place) + 20)
        screen.type("\x03")
        stopped = screen.wait_for("(stopped)", after=place)
        assert "^C" not in screen.seen[:stopped], "it would move the cursor under the answer"
        place = screen.wait_for("> ", after=stopped)
        screen.type("/stats\r")
        screen.wait_for("> ", after=screen.wait_for("2 messages", after=place))
        assert screen.leave("\x03") == 0
        assert "Traceback" not in screen.seen
        assert "interrupted" not in screen.seen


def test_ctrl_c_while_it_loads_is_one_line_and_leaves_a_cursor() -> None:
    with terminal("chat") as screen:
        screen.wait_for("loading the model")
        screen.type("\x03")
        assert screen.leave("") == 130
        assert screen.seen.count("interrupted") == 1
        assert screen.seen.endswith("nanoserve: interrupted\n")
        assert screen.raw.rfind(b"\x1b[?25h") > screen.raw.rfind(b"\x1b[?25l")


def test_ctrl_c_stops_a_servers_answer_and_hangs_up() -> None:
    with timed_server(Behaviour(gap=0.05)) as server:
        with terminal("chat", "--url", server.url, "--max-tokens", "100000") as screen:
            place = screen.wait_for("> ", after=screen.wait_for("timed at http://127.0.0.1"))
            screen.type("Go on.\r")
            place = screen.wait_for("word word", after=place)
            screen.type("\x03")
            place = screen.wait_for("> ", after=screen.wait_for("(stopped)", after=place))
            screen.type("/stats\r")
            screen.wait_for("> ", after=screen.wait_for("2 messages", after=place))
            wait_until(lambda: server.hung_up, lambda: "the connection is still open while the chat goes on")
            assert screen.leave("\x04") == 0
        assert len(server.bodies) == 1


def test_keys_pressed_during_an_answer_wait_for_the_next_prompt() -> None:
    behaviour = Behaviour(gap=0.2)
    with (
        timed_server(behaviour) as server,
        terminal("chat", "--url", server.url, "--max-tokens", "8") as screen,
    ):
        screen.wait_for("> ", after=screen.wait_for("timed at"))
        screen.type("Go on.\r")
        place = screen.wait_for("word", after=screen.wait_for("Go on."))
        screen.type("/st")
        screen.type("ats\r")
        place = screen.wait_for("> ", after=place)
        assert "st" not in screen.seen[:place].partition("Go on.")[2]
        screen.wait_for("tok/s", after=screen.wait_for("/stats", after=place))
        assert screen.leave("\x04") == 0


def test_an_error_in_a_terminal_is_a_note_and_the_talk_goes_on() -> None:
    with timed_server(Behaviour(refuse=(1, 503))) as server, terminal("chat", "--url", server.url) as screen:
        place = screen.wait_for("> ", after=screen.wait_for("timed at"))
        screen.type("Hi\r")
        place = screen.wait_for("> ", after=screen.wait_for("answered 503: try again later", after=place))
        server.behaviour.refuse = None
        screen.type("Hi again\r")
        screen.wait_for("> ", after=screen.wait_for("word word", after=place))
        assert screen.leave("\x04") == 0
        assert [len(body["messages"]) for body in server.bodies] == [1, 1], (
            "a question without an answer is forgotten"
        )


def test_what_a_server_says_is_rendered_and_cannot_steer() -> None:
    says = ("**bold** ", "\x1b[31mred", "\n\n", "- item\n")
    arguments = ("--max-tokens", "4", "--url")
    with timed_server(Behaviour(says=says)) as server, terminal("chat", *arguments, server.url) as screen:
        place = screen.wait_for("> ", after=screen.wait_for("timed at"))
        screen.type("Hi\r")
        screen.wait_for("> ", after=screen.wait_for("item", after=place))
        assert screen.leave("\x04") == 0
        assert "**bold**" not in screen.seen
        assert b"\x1b[31mred" not in screen.raw
        assert b"\x1b[1mbold" in screen.raw
