"""The symbols that claims, figures and tables of the page use, each in one sentence or two."""

TERMS = {
    "sigma_1": "is the largest singular value of a matrix: how far it can stretch a vector. One huge entry drives it.",
    "R-hat": "says whether single entries of the noise stand out. R is the part of one entry in the projection of the "
    "noise on a singular direction of the gradient; R-hat is R over its median for Gaussian noise. Near 1: as Gaussian "
    "noise. Far above 1: single entries stand out, or the noise is aligned with another direction.",
    "alpha": "is the share of entries with heavy-tailed noise (mostly Cauchy), on top of the Gaussian noise of all.",
    "tau": "is the threshold of a clip: hard clipping cuts larger entries to it. c is the scale of smooth shrinkage, "
    "x exp(-|x|/c); at c = tau/e its damping touches that of hard clipping.",
}
