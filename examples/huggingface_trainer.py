"""Logs MFU to the loggers of a Hugging Face Trainer by one added line: `python
examples/huggingface_trainer.py`."""

import torch
import transformers

import mfulab

config = transformers.GPT2Config(n_layer=2, n_head=4, n_embd=128, vocab_size=512)
model = transformers.GPT2LMHeadModel(config)
samples = torch.randint(0, 512, (256, 32))
data = [{"input_ids": ids, "labels": ids} for ids in samples]
arguments = transformers.TrainingArguments(
    "trained",
    max_steps=12,
    per_device_train_batch_size=4,
    gradient_accumulation_steps=2,
    gradient_checkpointing=True,
    use_cpu=not torch.cuda.is_available(),
    logging_strategy="no",
    save_strategy="no",
    report_to="none",
)
trainer = transformers.Trainer(model, arguments, train_dataset=data)
trainer.add_callback(callback := mfulab.TrainerCallback(trainer, every=4, warm_up=2))
trainer.train()
