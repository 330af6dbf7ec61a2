"""What is mended in Snakemake is still there to be mended, and only what no one asked for is taken back."""

from types import SimpleNamespace

import pytest
from snakemake.cli import get_argument_parser
from snakemake.scheduling.job_scheduler import JobRateLimiter

from mfulab.planning.mends import keep_no_default_rate


@pytest.mark.parametrize(
    ("arguments", "is_kept"),
    [([], False), (["--max-jobs-per-timespan", "30/1m"], True), (["--max-jobs-per-timespan", "2/1s"], True)],
)
def test_the_rate_that_no_one_asked_for_is_not_kept(arguments, is_kept):
    limiter = JobRateLimiter(get_argument_parser().parse_args(["--cores", "1", *arguments]).max_jobs_per_timespan)
    scheduler = SimpleNamespace(job_rate_limiter=limiter)
    keep_no_default_rate(scheduler)
    assert scheduler.job_rate_limiter is (limiter if is_kept else None)
