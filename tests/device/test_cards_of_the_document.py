"""What each card gets, as docs/gpu.md lists it, is what the code answers stand-ins for it."""

from support import cards


def test_the_document_s_table_is_today_s():
    told = cards.DOCUMENT.read_text(encoding="utf-8")
    assert cards.written(told) == told, "cd tests && PYTHONPATH=../src:. python -m support.cards"


def test_each_card_that_gets_less_says_so_in_a_sentence():
    lines = [line.split(" | ") for line in cards.table().splitlines() if line.startswith("| ")]
    best = next(line for line in lines if line[0].endswith("NVIDIA H200"))
    for name, *cells, less in lines[1:]:
        assert less.strip(" |") or cells[2:] == best[3:-1], name
