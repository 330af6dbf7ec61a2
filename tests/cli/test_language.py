"""`--language`: each command that prints texts has it, and it outweighs the terminal's own."""

import re

import pytest

from mfulab.__main__ import main
from mfulab.cli import options

HANGUL = re.compile("[가-힣]")
ASKED = {
    "a pattern": ["bits", "0x7fc00000"],
    "a value": ["bits", "0.1"],
    "memory": ["fits", "linear_1024", "--device", "H200-NVL"],
    "a roofline": ["explain", "model=gpt2", "device=H200-NVL"],
    "conventions": ["explain", "model=gpt2", "device=H200-NVL", "tokens_per_s=100"],
}


@pytest.mark.parametrize("words", ASKED.values(), ids=ASKED)
def test_the_language_asked_for_is_spoken_whatever_the_terminals(words, monkeypatch, capsys):
    def printed(terminal, *more):
        monkeypatch.setenv("LC_ALL", terminal)
        main([*words, *more])
        return capsys.readouterr().out

    english, korean = printed("en_US.UTF-8"), printed("ko_KR.UTF-8")
    assert HANGUL.search(korean)
    assert not HANGUL.search(english)
    assert printed("en_US.UTF-8", "--language", "ko") == korean
    assert printed("ko_KR.UTF-8", "--language", "en") == english


@pytest.mark.parametrize(
    "words",
    [["explain", "model=llama_3"], ["trace", "/nonexistent"], ["explain", "--unheard"]],
    ids=["unknown value", "missing file", "unknown option"],
)
@pytest.mark.parametrize("form", ["--language {}", "--language={}"])
def test_mistakes_are_told_in_the_language_asked_for(words, form, monkeypatch, capsys):
    for terminal, asked in (("en_US.UTF-8", "ko"), ("ko_KR.UTF-8", "en")):
        monkeypatch.setenv("LC_ALL", terminal)
        assert main([words[0], *form.format(asked).split(), *words[1:]]) > 0
        assert bool(HANGUL.search(capsys.readouterr().err)) == (asked == "ko")


@pytest.mark.parametrize("words", ASKED.values(), ids=ASKED)
def test_a_language_that_no_catalogue_has_is_refused(words, capsys):
    assert main([*words, "--language", "xx"]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert "'xx'" in said.err or "xx" in said.err
    assert options.LANGUAGES.choices() == ("en", "ko")
