"""Fused optimizer steps: a plan says what to do with which matrices, a backend does it in few passes over memory.

plan.py      the plan of a step, for any backend, and what a backend promises
binding.py   the tensors a plan rests on, checked before every step
fused_group.py   makes the plan of a param group and asks the threshold rule
adamw.py     what AdamW's group adds to it
momentum.py  what those of Muon and SGD add, and Muon's matrix signs in stacks
matrix_rows.py   where the matrices of a parameter lie in memory, also in a local shard
device_constants.py, captured_upload.py   what a step in a CUDA graph computes and copies on the device
backends.py  the backend of each type of device, imported at first use
cpu.py       the backend for a CPU: adamw.c, its structures and passes
host_jobs.py     what the jobs of both kernels on a CPU have in common
scaled_matrices.py   matrices whose clip follows the scales of rows and columns, and what a backend does for them
scaled_cpu.py, host_scales.py   the same on a CPU: scaled_adamw.c, and what the host works out between its passes
compiler.py  compiles adamw.c at first use and keeps the library
private_folder.py   the folder it is kept in, which no other user can put code into
gpu.py       the backend for a GPU: tables, tiles and launches
triton_kernels.py, triton_momentum.py, triton_search.py   its kernels: AdamW's, those with momentum, the quantiles
scaled_gpu.py, triton_scaled.py, triton_decision.py   thresholds by rows and columns: launches, passes, decisions
triton_norms.py, triton_precision.py   what these share: sums of squares, half precision
"""
