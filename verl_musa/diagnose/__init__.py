"""Finding out what is wrong with a job: here the day-0 correctness gate, before step 1.

Most of the gate runs inside the job (``verl_musa/device/gate*.py``), which writes its verdicts to a file. This room checks the
reward function on the recipe's golden pairs, which needs no job, and puts all verdicts together.

Public face: :func:`golden_results`, :func:`calls_for_job`, :func:`job_verdict`, :func:`write_gate`, :func:`read_gate` and :func:`failures`.
"""

from verl_musa.diagnose.gate import JOB_FILE, JobVerdict, failures, job_verdict, read_gate, write_gate
from verl_musa.diagnose.golden import calls_for_job, golden_results

__all__ = [
    "JOB_FILE",
    "JobVerdict",
    "calls_for_job",
    "failures",
    "golden_results",
    "job_verdict",
    "read_gate",
    "write_gate",
]
