"""Where entry-wise clipping gives spectral control and where it does not, and the same as a table."""

from collections.abc import Iterable, Sequence

from ...engine.study import Claim, Row
from ..entrywise import OPERATORS
from .study import CLIPS, NOISES, ClipQuality, ClipTime


class BestClips:
    """Each clip at its best threshold under each noise, and the seconds of a call."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self._best: dict[tuple[str, str], ClipQuality] = {}
        for each in ClipQuality.from_rows([row for row in rows if row["noise"]]):
            key = (each.noise, each.clip)
            if key not in self._best or each.error < self._best[key].error:
                self._best[key] = each
        self.seconds = {each.clip: each.seconds for each in ClipTime.from_rows(rows)}

    def __call__(self, noise: str, clip: str) -> ClipQuality:
        """The clip at the threshold with the least error of sigma_1 under this noise."""
        return self._best[noise, clip]


def claims(rows: Sequence[Row]) -> list[Claim]:
    """Answer the paper's title question under each noise, and check what the answer rests on."""
    best = BestClips(rows)
    return [*_of_entrywise_clips(best), _of_the_norm(best), *_of_spectral_clips(best)]


def _of_entrywise_clips(best: BestClips) -> list[Claim]:
    shown, delocalized = ("none", *OPERATORS), ("Gaussian", "low-rank")
    gain = {
        noise: max(best(noise, clip).kept for clip in OPERATORS) - best(noise, "none").kept for noise in delocalized
    }
    return [
        Claim(
            "under contamination entry-wise clipping gives sigma_1 within 10 % and keeps the top direction",
            _error_and_kept(best, "contamination", shown),
            all(_controlled(best("contamination", clip)) for clip in OPERATORS),
        ),
        Claim(
            "under Gaussian and low-rank noise it does not bring the direction back",
            ", ".join(f"{noise}: {value:+.2f} of the direction" for noise, value in gain.items()),
            max(gain.values()) < 0.1,
        ),
        Claim(
            "nor, quite, under low-rank noise with heavy-tailed factors",
            _error_and_kept(best, "heavy low-rank", shown),
            not any(_controlled(best("heavy low-rank", clip)) for clip in OPERATORS),
        ),
    ]


def _of_the_norm(best: BestClips) -> Claim:
    clips = ("global", *OPERATORS)
    return Claim(
        "sigma_1 alone is no test: under low-rank noise these get it within 10 %, and lose the direction",
        _error_and_kept(best, "low-rank", clips),
        all(best("low-rank", clip).error < 0.1 > best("low-rank", clip).kept for clip in clips),
    )


def _of_spectral_clips(best: BestClips) -> list[Claim]:
    worst = max(best(noise, "spectral").error for noise in NOISES)
    return [
        Claim("a spectral clip bounds sigma_1 under any noise", f"error at most {worst:.2g}", worst < 0.01),
        Claim(
            "an entry-wise clip costs less than a tenth of a spectral one",
            ", ".join(f"{name} {1e3 * value:.2g} ms" for name, value in best.seconds.items()),
            10 * best.seconds["smooth"] < min(best.seconds["spectral"], best.seconds["soft spectral"]),
        ),
    ]


def markdown_table(rows: Sequence[Row]) -> str:
    """Format the errors of sigma_1, the shares of the top direction kept and the times as a table in Markdown."""
    best = BestClips(rows)
    lines = [f"| noise | {' | '.join(['none', *CLIPS])} |", "|---|" + "---|" * (1 + len(CLIPS))]
    for noise in NOISES:
        found = [best(noise, clip) for clip in ("none", *CLIPS)]
        lines.append(f"| {noise} | {' | '.join(f'{each.error:.2g} / {kept_label(each)}' for each in found)} |")
    times = [f"{best.seconds[clip] / best.seconds['hard']:.2g}" for clip in CLIPS]
    return "\n".join([*lines, f"| time / hard clip's | 0 | {' | '.join(times)} |"])


def kept_label(quality: ClipQuality, between: str = " ") -> str:
    """The share of the top direction kept, with the dimension of the leading space where it is above 1."""
    return f"{quality.kept:.2f}" + (f"{between}(of {quality.leading:.0f} dim.)" if quality.leading > 1 else "")


def _controlled(quality: ClipQuality) -> bool:
    return quality.error < 0.1 and quality.kept > 0.9


def _error_and_kept(best: BestClips, noise: str, clips: Iterable[str]) -> str:
    found = [best(noise, clip) for clip in clips]
    return "; ".join(f"{each.clip}: error {each.error:.2g}, {each.kept:.2f} kept" for each in found)
