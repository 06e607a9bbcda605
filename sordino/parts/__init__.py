"""Small parts that methods share. No privacy mechanism and no message is hidden in here."""

__all__ = [
    "augmentation",
    "averaging",
    "blending",
    "clustering",
    "curves",
    "ddpg",
    "distillation",
    "masks",
    "ppo",
    "proximal",
    "record_thresholds",
    "server_optimizers",
    "sum_thresholds",
    "thresholds",
]
