"""Functions of matrices: the matrix sign, spectral clips and leading singular triplets."""
