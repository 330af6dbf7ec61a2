"""Snakemake's own report: every figure with its words, in a browser without network."""

import json
import re
import shutil
import zipfile

import pytest
from support.workflow_copy import MINIATURE

pytestmark = pytest.mark.workflow


def drawn(project) -> set[str]:
    return set((project.folder / "results/tables/figures.txt").read_text().split())


def data(page: str, name: str):
    """One of the JSON documents that the page carries."""
    return json.loads(
        re.search(rf'<script id="{name}">\s*var {name} = (.*?);\s*</script>', page, re.DOTALL)[1]
    )


@pytest.mark.slow
def test_every_figure_is_embedded_with_caption_category_and_labels(measured):
    measured.snakemake("--report", "all.html", *MINIATURE)
    page = (measured.folder / "all.html").read_text()
    results = data(page, "results")
    shown = {result["name"].removesuffix(".svg"): result for result in results.values()}
    assert (
        set(shown)
        == drawn(measured)
        > {"mfu_versus_utilization", "utilization_ladder", "kernel_ladder"}
    )
    for name, result in shown.items():
        assert result["data_uri"].startswith("data:image/svg+xml")
        expected = f"snakemake --cores 1 reports/figures/{name}.svg"
        assert expected in re.sub("<[^>]+>", "", result["caption"])
        assert result["labels"]["name"] == name
        assert result["labels"]["figure"] not in ("", name)
    categories = data(page, "categories")
    expected = {"MFU against utilization", "Which matmul, at which size?", "What fits in memory?"}
    assert expected <= set(categories)
    assert "How busy a device was" in page


@pytest.mark.slow
def test_one_command_measures_and_writes_it_as_a_zip_in_korean(measured):
    asked = (*MINIATURE, "batch_size=2", "overrides=report.language=ko")
    measured.snakemake("--report", "all.zip", "--report-after-run", *asked)
    with zipfile.ZipFile(measured.folder / "all.zip") as archive:
        names = archive.namelist()
        page = archive.read("all/report.html").decode()
    found = {name.split("/")[-1] for name in names}
    assert found == {"report.html", *(f"{name}.svg" for name in drawn(measured))}
    assert "어떤 행렬곱을, 어떤 크기로?" in data(page, "categories")


@pytest.mark.slow
def test_it_opens_without_network_and_shows_the_figure_of_a_category(measured):
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("no chromium on this machine")
    measured.snakemake("--report", "all.html", *MINIATURE)
    complaints, requests = [], []
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        tab = browser.new_context(offline=True).new_page()
        tab.on("pageerror", lambda error: complaints.append(str(error)))
        tab.on("request", lambda request: requests.append(request.url))
        tab.goto((measured.folder / "all.html").as_uri())
        tab.get_by_text("MFU against utilization").first.click()
        tab.locator("a[iconname=eye]").first.click()
        figure = tab.locator("img[src*=mfu_versus_utilization]")
        figure.wait_for()
        assert figure.evaluate("image => image.complete && image.naturalWidth") > 0
        tab.locator("a[iconname=information-circle]").first.click()
        tab.get_by_text("A line is a run").first.wait_for()
        browser.close()
    assert complaints == []
    found = [url for url in requests if not url.startswith("data:")]
    assert found == [(measured.folder / "all.html").as_uri()]
