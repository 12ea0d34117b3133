"""Executes programs as torch.distributed training: the only package that imports torch."""
