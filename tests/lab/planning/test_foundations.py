"""What a recorded number rests on: digests that formatting leaves alone and a change of meaning does
not."""

import ast

import pytest

from mfulab.lab.planning import foundations
from mfulab.lab.planning.sources import PACKAGE
from mfulab.lab.planning.statements import parted, plain


def normal(text: str) -> str:
    module = ast.parse(text)
    module.body = [part for statement in module.body for part in parted(statement)]
    for statement in module.body:
        plain(statement)
    return ast.dump(module)


ALIKE = [
    ("a, b = 1, 2", "a = 1\nb = 2"),
    ("def f(x):\n return 1 if x else 2 if y else 3", "def f(x):\n if x: return 1\n elif y: return 2\n else: return 3"),
    ("def f(x):\n if x:\n  return 1\n return 2", "def f(x):\n return 1 if x else 2"),
    ("def f(x):\n a, b = x if g else y, h(x)", "def f(x):\n if g:\n  a = x\n else:\n  a = y\n b = h(x)"),
    ("for i in j:\n if i:\n  continue\n g(i)", "for i in j:\n if i:\n  continue\n else:\n  g(i)"),
]  # fmt: skip
UNLIKE = [
    ("a, b = b, a", "a = b\nb = a"),
    ("a, b = f()", "a = f()\nb = f()"),
    ("x, y = self.x, x + 1", "x = self.x\ny = x + 1"),
    ("a, b = 1, 2", "a = 1\nb = 3"),
    ("def f(x):\n if x:\n  g()\n return 2", "def f(x):\n if x:\n  g()\n else:\n  return 2"),
    ("a, *b = 1, 2", "a = 1\nb = 2"),
]


@pytest.mark.parametrize(("one", "other"), ALIKE)
def test_statements_that_mean_the_same_have_one_form(one, other):
    assert normal(one) == normal(other)


@pytest.mark.parametrize(("one", "other"), UNLIKE)
def test_statements_that_mean_another_thing_keep_their_own(one, other):
    assert normal(one) != normal(other)


def sources(**edited):
    files = ("kernels/base.py", "timing/windows.py", "flops/count.py", "lab/planning/costs.py")
    files += (
        "measurements/bench_matmul/__init__.py",
        "device/identity.py",
        "device/samplers/series.py",
    )
    return {PACKAGE / file: edited.get(file, "0") for file in files}


@pytest.mark.parametrize(
    ("file", "parts"),
    [
        ("kernels/base.py", ["kernels"]),
        ("timing/windows.py", ["timing"]),
        ("flops/count.py", ["counting"]),
        ("device/samplers/series.py", ["devices"]),
        ("device/identity.py", []),
        ("lab/planning/costs.py", []),
        ("measurements/bench_matmul/__init__.py", []),
    ],
)
def test_a_change_ages_the_part_that_it_lies_in_and_no_other(file, parts):
    before = foundations.digests_of(sources())
    after = foundations.digests_of(sources(**{file: "1"}))
    assert foundations.changed(before, after) == parts


def test_a_matmul_rests_on_its_kernel_and_on_no_model():
    found = foundations.foundations("bench_matmul,mfulab.kernels.cuda_wide.CudaWide", "nvidia-h200")
    assert {"kernels", "timing", "devices", "measuring"} <= found.keys()
    assert "models" not in found
    assert foundations.foundations("bench_matmul,mfulab.kernels.gone.Gone", "nvidia-h200") == {}
