"""Hugging Face's Trainer with Muon, its clips and both callbacks.

To fine-tune the real model, write `GPT2LMHeadModel.from_pretrained("gpt2")` and a data set of your own. A small one
with fresh weights learns the bytes of a source file here, so that nothing is downloaded.
"""

import argparse
import pathlib
import tempfile

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

import entryclip as ec
from entryclip.integrations.transformers import Build, ClipReportCallback, MonitorCallback


def examples(length: int = 64) -> list[dict[str, torch.Tensor]]:
    data = torch.tensor(list(pathlib.Path(argparse.__file__).read_bytes()))
    return [{"input_ids": row, "labels": row} for row in data[: len(data) // length * length].view(-1, length)]


def main() -> None:
    torch.manual_seed(0)
    model = GPT2LMHeadModel(
        GPT2Config(vocab_size=256, n_positions=64, n_embd=64, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0)
    )
    report = ClipReportCallback(every=10)
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            per_device_train_batch_size=8,
            max_steps=30,
            learning_rate=0.02,  # Muon's; embeddings, head and vectors have other_lr
            weight_decay=0.1,
            max_grad_norm=0.0,  # Muon sets the size of its update itself
            logging_steps=10,
            save_strategy="no",
            report_to=[],  # or ["tensorboard"], ["wandb"], ...: the callbacks' metrics are in there
            use_cpu=True,
            disable_tqdm=True,
        )
        trainer = Trainer(
            model,
            arguments,
            train_dataset=examples(),
            optimizer_cls_and_kwargs=(Build, {"method": "muon", "other_lr": 3e-3}),
            callbacks=[MonitorCallback(every=10, alarm=True), report],
        )
        trainer.train()
    print(ec.optim.explain(trainer.optimizer.optimizer))
    for logs in trainer.state.log_history[:-1]:
        print({key: round(float(logs[key]), 3) for key in ("step", "loss", "noise/spiked", "clip/rms_kept")})
    print(report.report[0])


if __name__ == "__main__":
    main()
