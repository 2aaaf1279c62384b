"""Fused optimizer steps: a plan says what to do with which matrices, a backend does it in few passes over memory.

plan.py      the plan of a step, for any backend, and what a backend promises
binding.py   the tensors a plan rests on, checked before every step
adamw.py     AdamW: makes the plan, asks the threshold rule, keeps the brackets of the quantiles
cpu.py       the backend for a CPU: adamw.c, its structures and passes
compiler.py  compiles adamw.c at first use and keeps the library
"""
