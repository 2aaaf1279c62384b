"""The training methods of the language model as the figures and tables show them: names, looks, baselines."""

from typing import Any

METHOD_NAMES = {
    "adamw": "AdamW",
    "adamw-norm": "AdamW, global norm clip",
    "post-hard": "AdamW, hard clip",
    "post-smooth": "AdamW, smooth shrinkage",
    "post-smooth-rms": "AdamW, smooth, RMS kept",
    "muon": "Muon",
    "spectra": "SPECTRA",
    "pre-hard": "Muon, hard clip",
    "pre-smooth": "Muon, smooth shrinkage",
    "adamw-hard": "AdamW, hard clip of the gradient",
    "adamw-smooth": "AdamW, smooth shrinkage of the gradient",
    "muon-norm": "Muon, global norm clip",
    "adamw-auto": "AdamW, auto (gradient)",
    "post-auto": "AdamW, auto (update)",
    "muon-auto": "Muon, auto (gradient)",
    "pre-auto": "Muon, auto (momentum)",
    "snapshot": "the speed-run's Muon",
    "post-smooth-slope": "AdamW, smooth, slope kept",
    "adagc": "AdaGC",
    "zclip": "ZClip",
    "stable-adamw": "StableAdamW",
    "spam": "SPAM",
    "stable-spam": "Stable-SPAM",
    "spectral-clipping": "AdamW, spectral clip (running)",
    "normuon": "NorMuon",
    "muon-standardized": "Muon, standardised momentum",
}
# Methods that others published, each with its own rule for what to clip.
_PUBLISHED_ON_ADAMW = ("adagc", "zclip", "stable-adamw", "spam", "stable-spam", "spectral-clipping")
PUBLISHED = (*_PUBLISHED_ON_ADAMW, "spectra", "normuon")
# The method without a clip that each is compared with; SPECTRA, which clips AdamW's update, as in the paper's tables.
_ON_ADAMW = ("adamw-norm", "adamw-hard", "adamw-smooth", "post-hard", "post-smooth", "post-smooth-rms")
_ON_MUON = ("muon-norm", "spectra", "pre-hard", "pre-smooth")
BASELINES = dict.fromkeys((*_ON_ADAMW, "adamw-auto", "post-auto", *_PUBLISHED_ON_ADAMW), "adamw") | dict.fromkeys(
    (*_ON_MUON, "muon-auto", "pre-auto", "normuon", "muon-standardized"), "muon"
)
BASELINES["post-smooth-slope"] = "adamw"
# Colours and line styles of the curves, as matplotlib takes them.
METHOD_LOOKS: dict[str, dict[str, Any]] = {
    "adamw": {"color": "#555555", "ls": (0, (1, 1.5))},
    "muon": {"color": "#555555", "ls": (0, (1, 1.5))},
    "adamw-norm": {"color": "#8a6d1c", "ls": "dotted"},
    "spectra": {"color": "#2f8f5b", "ls": "dashdot"},
    "post-hard": {"color": "#1f5fa8", "ls": (0, (5, 2))},
    "pre-hard": {"color": "#1f5fa8", "ls": (0, (5, 2))},
    "post-smooth": {"color": "#c8352b", "ls": "solid"},
    "pre-smooth": {"color": "#c8352b", "ls": "solid"},
    "muon-norm": {"color": "#8a6d1c", "ls": "dotted"},
    "adamw-hard": {"color": "#6fa0d8", "ls": (0, (5, 2))},
    "adamw-smooth": {"color": "#e58b84", "ls": "solid"},
    "adamw-auto": {"color": "#1d7a46", "ls": "solid"},
    "muon-auto": {"color": "#1d7a46", "ls": "solid"},
    "post-auto": {"color": "#111111", "ls": "solid"},
    "pre-auto": {"color": "#111111", "ls": "solid"},
    "post-smooth-rms": {"color": "#6b4fa0", "ls": (0, (3, 1, 1, 1))},
    "post-smooth-slope": {"color": "#d98c2b", "ls": (0, (4, 1, 1, 1))},
    "adagc": {"color": "#0f8b8d", "ls": (0, (5, 1))},
    "zclip": {"color": "#d98324", "ls": (0, (5, 1))},
    "stable-adamw": {"color": "#a23b72", "ls": (0, (3, 1))},
    "spam": {"color": "#4a7c59", "ls": (0, (2, 1))},
    "stable-spam": {"color": "#7d5ba6", "ls": (0, (2, 1))},
    "spectral-clipping": {"color": "#2f8f5b", "ls": (0, (1, 1))},
    "normuon": {"color": "#0f8b8d", "ls": (0, (5, 1))},
    "muon-standardized": {"color": "#a23b72", "ls": (0, (3, 1))},
}
