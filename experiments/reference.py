"""The published study's figures, to stand beside ours."""

from dataclasses import dataclass

PROFILE = "qwen3-4b-4bit-m4max"
ONE_REPLY_S = 0.93
TYPICAL_LOAD = 4


@dataclass(frozen=True, slots=True)
class StudyTypical:
    """Its 40 requests at 4 per second, in seconds: medians, the longest wait for the first word, and when all ended."""

    ttft: float
    longest: float
    writing: float
    reply: float
    done: float


@dataclass(frozen=True, slots=True)
class StudyLoad:
    """Its recorded run at one rate: seconds, and tokens per second."""

    ttft_p50: float
    ttft_p95: float
    reply_p50: float
    reply_p95: float
    tokens_per_s: float


TYPICAL = {
    "one": StudyTypical(13.82, 27.6, 0.81, 14.6, 37.1),
    "static": StudyTypical(4.46, 7.8, 2.38, 6.7, 17.7),
    "continuous": StudyTypical(0.43, 1.1, 5.97, 6.4, 13.7),
}

LOADS = {
    (1, "one"): StudyLoad(2.13, 3.61, 2.9, 4.4, 132),
    (1, "static"): StudyLoad(0.70, 1.04, 1.6, 2.0, 145),
    (1, "continuous"): StudyLoad(0.13, 0.21, 1.1, 1.6, 145),
    (2, "one"): StudyLoad(9.38, 16.4, 10.2, 17.2, 145),
    (2, "static"): StudyLoad(0.93, 1.76, 2.0, 3.0, 261),
    (2, "continuous"): StudyLoad(0.20, 0.34, 2.1, 2.9, 270),
    (4, "one"): StudyLoad(13.2, 25.1, 14.0, 26.0, 141),
    (4, "static"): StudyLoad(4.61, 7.83, 7.0, 10.3, 281),
    (4, "continuous"): StudyLoad(0.46, 1.02, 7.0, 8.2, 390),
}


@dataclass(frozen=True, slots=True)
class StudySweep:
    """Its replies started together: tokens per second in total, and seconds until every reply was done."""

    tokens_per_s: float
    done_s: float


SWEEP = {
    1: StudySweep(138, 0.93),
    2: StudySweep(227, 1.13),
    4: StudySweep(239, 2.15),
    8: StudySweep(292, 3.50),
    16: StudySweep(345, 5.94),
    32: StudySweep(482, 8.42),
    64: StudySweep(462, 17.57),
}


@dataclass(frozen=True, slots=True)
class StudyPrefix:
    """Its emails sorted one at a time: prompt tokens read, medians in seconds, and answers right of 20."""

    read: int
    ttft: float
    reply: float
    right: int


PREFIX = {
    "no prefix cache": StudyPrefix(1864, 2.96, 3.80, 11),
    "prefix cached": StudyPrefix(87, 0.21, 1.14, 12),
}

KV_QUANT = (
    "The study: 47 % saved at 8 bits and 72 % at 4, against 16. At about 4,000 tokens all held up (10 questions); at "
    "about 16,500, 3 of 10 were found at 16 bits and 1 at 4, and reading took 36.6 s instead of 30.7."
)

KV_SIZE = (
    "The study: Qwen3-8B keeps 147,456 B a token, 4.8 GB at 32K tokens and 154 GB for 32 such users; Qwen3-0.6B's "
    "cache passes its own weights at about 10,000 tokens."
)
