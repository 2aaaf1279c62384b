"""Functions of matrices, batched over leading dimensions.

sign.py         the matrix sign `msign`
iterations.py   the quintic iterations behind it
clips.py        clips of singular values
singular.py     leading singular triplets
"""
